#!/bin/bash
# Checks the Helm chart: linted, rendered with several values, and what its schema refuses.
# usage: packaging/check-chart.sh HELM
set -euo pipefail
helm=$(realpath "$1")
cd "$(dirname "$0")/kubernetes"
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work
fail() {
    echo "check-chart: $*" >&2
    exit 1
}
render() {
    "$helm" template egpu chart --namespace egpu --kube-version 1.37.0 "$@" 2>"$work/errors"
}
# has TEXT ARGUMENT...: the objects that these arguments make have the text.
has() {
    local text=$1
    shift
    render "$@" >"$work/objects" || fail "$*: $(<"$work/errors")"
    grep --quiet --fixed-strings -- "$text" "$work/objects" || fail "$*: lacks: $text"
}
# lacks TEXT...: what `has` looked at last has none of them.
lacks() {
    for text; do
        ! grep --quiet --fixed-strings -- "$text" "$work/objects" || fail "has: $text"
    done
}
# refused VALUE: the schema does not take it.
refused() {
    ! render --set "$1" >/dev/null || fail "$1 is accepted"
    grep --quiet "values don't meet the specifications of the schema" "$work/errors" || fail "$1: $(<"$work/errors")"
}

# It says which of the files are links to the plain manifests.
"$helm" lint --strict --namespace egpu chart 2> >(grep --invert-match "symbolic link" >&2)
monitoring=(--set metrics.serviceMonitor=true,metrics.prometheusRule=true,metrics.dashboard=true)
has "kind: ServiceMonitor" "${monitoring[@]}"
has "alert: EgpuCardUnusable" "${monitoring[@]}"
has "card {{ \$labels.card }} is not offered any more" "${monitoring[@]}"
has 'grafana_dashboard: "1"' "${monitoring[@]}"
has "image: mirror.example/egpu:v7" --set image.repository=mirror.example/egpu,image.tag=v7
has "image: mirror.example/busybox" --set chrootImage=mirror.example/busybox
has "name: pull" --set 'imagePullSecrets[0].name=pull'
has "memory: 5Mi" --set runtimeClass.overhead.podFixed.memory=5Mi
has "key: only" --set 'tolerations[0].key=only'
has "cpu: 11m" --set plugin.resources.requests.cpu=11m
has "kind: MutatingWebhookConfiguration" --set webhook.enabled=true
for part in webhook scorer; do
    has "image: mirror.example/egpu:v7" --show-only "templates/$part.yaml" --set "$part.enabled=true" \
        --set "image.repository=mirror.example/egpu,image.tag=v7" \
        --set "$part.nodeSelector.zone=a,$part.tolerations[0].key=b,tolerations[0].key=c"
    lacks hostPath "key: c"
    grep --quiet "zone: a" "$work/objects" && grep --quiet "key: b" "$work/objects" || fail "the $part's nodes"
done
certified=(--show-only templates/webhook.yaml --set webhook.enabled=true,webhook.certManager.enabled=true)
has "cert-manager.io/inject-ca-from: egpu/egpu-webhook" "${certified[@]}"
lacks egpu-webhook-certificate own-certificate "kind: Secret"
[ "$(grep --count "egpu-webhook-tls" "$work/objects")" = 2 ] || fail "the certificate is made and mounted"
has "name: company" "${certified[@]}" --set webhook.certManager.issuer.name=company,webhook.certManager.issuer.kind=ClusterIssuer
lacks "kind: Issuer"
has "schedulers = [1]" --set webhook.enabled=true,webhook.replicas=5 --set-string 'webhook.settings=schedulers = [1]'
grep --quiet "replicas: 5" "$work/objects" || fail "the webhook's replicas"
grep --quiet "checksum/settings" "$work/objects" || fail "new settings restart nothing"
has "name: egpu-scorer" --set scorer.enabled=true,scorer.placement=spread
grep --quiet -e "- spread" "$work/objects" || fail "the scorer's placement"
render --set install.enabled=false,metrics.enabled=false >"$work/objects"
! grep --quiet -e 'name: install' -e 'egpu, metrics' "$work/objects" || fail "what is switched off is there"
for value in image.pullPolicy=Sometimes metrics.port=0 install.restart=maybe scorer.placement=random no=such imagePullSecrets=one webhook.certManager.issuer.kind=Issuer; do
    refused "$value"
done
# A key that is set to null is taken out of the defaults.
for key in image chrootImage install runtimeClass plugin webhook scorer metrics image.repository scorer.placement metrics.port; do
    refused "$key=null"
    grep --quiet "missing property '${key##*.}'" "$work/errors" || fail "$key=null: $(<"$work/errors")"
done
! "$helm" template egpu chart --namespace other --kube-version 1.37.0 2>"$work/errors" >/dev/null || fail "another namespace is accepted"
grep --quiet "namespace egpu" "$work/errors" || fail "another namespace: $(<"$work/errors")"
# Every object of the plain manifests, and no other but the chart's own.
render >"$work/objects"
for file in device-classes kubelet-plugin rbac validating-admission-policy; do
    for kind in $(sed -n 's/^kind: //p' "$file.yaml"); do
        grep --quiet "^kind: $kind$" "$work/objects" || fail "$file.yaml: its $kind is missing"
    done
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' ../../Cargo.toml | head -n 1)
for file in chart/Chart.yaml optional/{scorer,webhook}.yaml; do
    ! grep --extended-regexp --invert-match "ersion: $version$|egpu:$version$" "$file" | grep --quiet --extended-regexp '^(appV|v)ersion:|image:' ||
        fail "$file is of another version than Cargo.toml, $version"
done
"$helm" package chart --destination "$work" >/dev/null 2>"$work/errors"
[ "$(tar --list --verbose --file "$work"/egpu-*.tgz | grep --count '^l')" = 0 ] || fail "the package has links"
echo "the chart is right"
