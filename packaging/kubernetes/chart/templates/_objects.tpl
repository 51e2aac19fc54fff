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
The objects of a file, which is a plain manifest of this repository. In its pods: `image`, `resources` (as they are where
empty), and the chart's pull secrets; in a DaemonSet's its tolerations, too: a Deployment's leave a node that is lost. Where given: `replicas`, `command`, `settings` as webhook.toml.
*/ -}}
{{- define "egpu.objects" -}}
{{- $values := .root.Values }}
{{- range $text := splitList "\n---\n" (.root.Files.Get .file) }}
{{- $object := fromYaml $text }}
{{- if not (hasKey $object "kind") }}{{ fail (printf "%s: no object of Kubernetes: %s" $.file $text) }}{{ end }}
{{- if and $.settings (eq $object.kind "ConfigMap") }}{{ $_ := set $object "data" (dict "webhook.toml" $.settings) }}{{ end }}
{{- if and $.replicas (eq $object.kind "Deployment") }}{{ $_ := set $object.spec "replicas" $.replicas }}{{ end }}
{{- if has $object.kind (list "DaemonSet" "Deployment") }}
{{- $pod := $object.spec.template.spec }}
{{- range $pod.containers }}
{{- $_ := set . "image" $.image }}
{{- $_ := set . "imagePullPolicy" $values.image.pullPolicy }}
{{- if $.resources }}{{ $_ := set . "resources" $.resources }}{{ end }}
{{- if $.command }}{{ $_ := set . "command" $.command }}{{ end }}
{{- end }}
{{- $fields := fromYaml (include "egpu.pod" $.root) }}
{{- if eq $object.kind "Deployment" }}{{ $_ := unset $fields "tolerations" }}{{ end }}
{{- $_ := mustMergeOverwrite $pod $fields }}
{{- if $.settings }}
{{- $_ := mustMergeOverwrite $object.spec.template.metadata (dict "annotations" (dict "checksum/settings" (sha256sum $.settings))) }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end -}}
