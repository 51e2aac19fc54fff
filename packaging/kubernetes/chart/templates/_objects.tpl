{{- /* The egpu image. */ -}}
{{- define "egpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* Fields of all pods of the chart. */ -}}
{{- define "egpu.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /*
The objects of a file, which is a plain manifest of this repository, but for those of the name `without`. In its pods: `image`,
`command` where given, the chart's pull secrets, and of the part's values, `of`, `resources` (as they are where empty). A DaemonSet has
the chart's tolerations; a Deployment has its part's, so that it leaves a node that is lost, and its `nodeSelector` and `replicas`.
`settings` is webhook.toml; `certificate` is the Secret, filled by cert-manager, that a webhook's pods mount.
*/ -}}
{{- define "egpu.objects" -}}
{{- $values := .root.Values }}
{{- $of := .of }}
{{- range $text := splitList "\n---\n" (.root.Files.Get .file) }}
{{- $object := fromYaml $text }}
{{- if not (hasKey $object "kind") }}{{ fail (printf "%s: no object of Kubernetes: %s" $.file $text) }}{{ end }}
{{- if and $of.settings (eq $object.kind "ConfigMap") }}{{ $_ := set $object "data" (dict "webhook.toml" $of.settings) }}{{ end }}
{{- if and $.certificate (eq $object.kind "MutatingWebhookConfiguration") }}
{{- $_ := set $object.metadata "annotations" (dict "cert-manager.io/inject-ca-from" "egpu/egpu-webhook") }}
{{- end }}
{{- if has $object.kind (list "DaemonSet" "Deployment") }}
{{- $pod := $object.spec.template.spec }}
{{- range $pod.containers }}
{{- $_ := set . "image" $.image }}
{{- $_ := set . "imagePullPolicy" $values.image.pullPolicy }}
{{- if $of.resources }}{{ $_ := set . "resources" $of.resources }}{{ end }}
{{- if $.command }}{{ $_ := set . "command" $.command }}{{ end }}
{{- if $.certificate }}
{{- $_ := set . "volumeMounts" (append .volumeMounts (dict "name" "certificate" "mountPath" "/etc/egpu-certificate" "readOnly" true)) }}
{{- end }}
{{- end }}
{{- if $.certificate }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "certificate" "secret" (dict "secretName" $.certificate))) }}
{{- end }}
{{- $fields := fromYaml (include "egpu.pod" $.root) }}
{{- if eq $object.kind "Deployment" }}
{{- $fields = merge (pick $of "nodeSelector" "tolerations") (omit $fields "tolerations") }}
{{- if $of.replicas }}{{ $_ := set $object.spec "replicas" $of.replicas }}{{ end }}
{{- end }}
{{- $_ := mustMergeOverwrite $pod $fields }}
{{- if $of.settings }}
{{- $_ := mustMergeOverwrite $object.spec.template.metadata (dict "annotations" (dict "checksum/settings" (sha256sum $of.settings))) }}
{{- end }}
{{- end }}
{{- if ne $object.metadata.name ($.without | default "") }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}
{{- end -}}
