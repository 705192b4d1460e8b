{{/* Names and labels. The label app.kubernetes.io/name stays: `topo-lb top` and `view` find agents by it. */}}
{{- define "topo-lb.name" -}}
{{- $name := .Values.nameOverride | default .Chart.Name }}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- .Values.fullnameOverride | default $release | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "topo-lb.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "topo-lb.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* What selects the agents. It cannot be changed while the DaemonSet exists. */}}
{{- define "topo-lb.selector" -}}
app.kubernetes.io/name: topo-lb
app.kubernetes.io/instance: {{ include "topo-lb.name" . }}
{{- end }}

{{- define "topo-lb.labels" -}}
{{ include "topo-lb.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
