{{/* How many replicas an upgrade leaves: as many as there are, whoever decides from then on.

Helm removes a field that the last manifest had and the next has not, and the API server then sets it to 1. So once `replicas` has
been written for a Deployment, each upgrade writes it, with the live count; an annotation says whether it has been. */}}

{{/* Called with (list root name autoscaled): who decides about replicas in the manifest, "chart" or "autoscaler". */}}
{{- define "holdfast.replicasOwner" -}}
{{- $live := lookup "apps/v1" "Deployment" (index . 0).Release.Namespace (index . 1) -}}
{{- $owner := dig "metadata" "annotations" "holdfast/replicas" "chart" (default dict $live) -}}
{{- if and (index . 2) (or (not $live) (eq $owner "autoscaler")) -}}autoscaler{{- else -}}chart{{- end -}}
{{- end -}}

{{/* Called with (list root name autoscaled): the annotation of a Deployment. */}}
{{- define "holdfast.replicasAnnotation" -}}
annotations:
  holdfast/replicas: {{ include "holdfast.replicasOwner" . }}
{{- end -}}

{{/* Called with (list root name autoscaled given least): the line of a Deployment's spec, if it has one. Without an autoscaler, null is
     what there is, and at least so many. */}}
{{- define "holdfast.replicas" -}}
{{- if eq (include "holdfast.replicasOwner" .) "chart" -}}
{{- $live := int64 (dig "spec" "replicas" 0 (default dict (lookup "apps/v1" "Deployment" (index . 0).Release.Namespace (index . 1)))) -}}
replicas: {{ if index . 2 }}{{ $live }}{{ else if kindIs "invalid" (index . 3) }}{{ max $live (int64 (index . 4)) }}{{ else }}{{ int64 (index . 3) }}{{ end }}
{{- end -}}
{{- end -}}
