{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Called with (list root component): what its selector says, which must never change. The workers of all types are workers:
     worker-media has the component worker and the type media. */}}
{{- define "holdfast.selector" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
app.kubernetes.io/name: {{ include "holdfast.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- if hasPrefix "worker-" $component }}
app.kubernetes.io/component: worker
holdfast/worker-type: {{ trimPrefix "worker-" $component }}
{{- else }}
app.kubernetes.io/component: {{ $component }}
{{- end }}
{{- end -}}

{{/* All pods of this release, whatever they do. */}}
{{- define "holdfast.everyone" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Called with (list root component). */}}
{{- define "holdfast.labels" -}}
{{- $root := index . 0 -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/part-of: holdfast
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* Called with (list root component name): the metadata of a thing. */}}
{{- define "holdfast.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "holdfast.labels" (list $root (index . 1)) | nindent 2 }}
{{- end -}}

{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.secretName" -}}
{{- default (include "holdfast.fullname" .) .Values.secret.existing -}}
{{- end -}}

{{- define "holdfast.redisName" -}}{{ include "holdfast.fullname" . }}-redis{{- end -}}

{{- define "holdfast.postgresName" -}}{{ include "holdfast.fullname" . }}-postgres{{- end -}}

{{- define "holdfast.apiHost" -}}{{ include "holdfast.fullname" . }}-api.{{ .Release.Namespace }}.svc{{- end -}}

{{/* Whether a database is configured: "true" or nothing. */}}
{{- define "holdfast.hasDatabase" -}}
{{- if not .Values.database.ephemeral -}}true{{- end -}}
{{- end -}}

{{/* Every worker type with all of its values, as YAML: name: {…}. */}}
{{- define "holdfast.workers" -}}
{{- $all := dict -}}
{{- range $name, $type := .Values.workers -}}
{{- if $type -}}
{{- $_ := set $all $name (mergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy $type)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Called with (list root type): whether KEDA scales this worker type: "true" or nothing. */}}
{{- define "holdfast.autoscaled" -}}
{{- if and (ne (index . 0).Values.keda.profile "none") (index . 1).scaling.enabled -}}true{{- end -}}
{{- end -}}

{{/* Called with (list root component): the name of a worker type's Deployment, which is a label, too: 63 letters at most. */}}
{{- define "holdfast.workerName" -}}
{{- $left := int (sub 62 (len (index . 1))) -}}
{{- printf "%s-%s" (include "holdfast.fullname" (index . 0) | trunc $left | trimSuffix "-") (index . 1) -}}
{{- end -}}
