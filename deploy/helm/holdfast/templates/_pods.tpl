{{/* Pods of ours are alike: here is what all of them have. */}}

{{/* Called with (list root component name); ends with the annotations, so that more can follow. */}}
{{- define "holdfast.podMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "holdfast.labels" (list $root (index . 1)) | nindent 2 }}
  app: {{ index . 2 }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # New settings roll out by themselves.
  checksum/settings: {{ include "holdfast.settings" $root | sha256sum }}
  {{- with $root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Called with (dict root component grace own): the spec without its containers; own is a worker type's own placing. */}}
{{- define "holdfast.podSpec" -}}
{{- $root := .root -}}
{{- $own := default dict .own -}}
serviceAccountName: {{ include "holdfast.fullname" $root }}{{ if .token }}-{{ .component }}{{ end }}
automountServiceAccountToken: {{ ternary true false (default false .token) }}
# A Service named holdfast-api would set HOLDFAST_API_PORT in every pod.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  {{- include "holdfast.podSecurity" $root.Values.podSecurity | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with default $root.Values.nodeSelector $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $root.Values.tolerations $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range $root.Values.topologySpread.keys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "holdfast.selector" (list $root $.component) | nindent 8 }}
  {{- end }}
{{- end }}
volumes:
  - name: settings
    configMap:
      name: {{ include "holdfast.fullname" $root }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ $root.Values.tmpSize }}
  {{- with $root.Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "holdfast.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .runAsUser | int64 }}
runAsGroup: {{ .runAsGroup | int64 }}
fsGroup: {{ .fsGroup | int64 }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "holdfast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Called with root: the image and its boundaries. */}}
{{- define "holdfast.container" -}}
image: {{ include "holdfast.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "holdfast.containerSecurity" . | nindent 2 }}
{{- end -}}

{{/* Called with root: where the settings and a place to write are. */}}
{{- define "holdfast.mounts" -}}
- name: settings
  mountPath: /etc/holdfast
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Called with root: the environment that every process of ours has. */}}
{{- define "holdfast.env" -}}
- name: HOLDFAST_CONFIG
  value: /etc/holdfast/holdfast.yaml
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- include "holdfast.secretEnv" (list . "REDIS_URL" "redis-url" true) }}
{{- include "holdfast.secretEnv" (list . "REDIS_PASSWORD" "redis-password" false) }}
{{- if include "holdfast.hasDatabase" . }}
{{- include "holdfast.secretEnv" (list . "DATABASE_URL" "database-url" true) }}
{{- else }}
- name: HOLDFAST_DATABASE_PATH
  value: /tmp/holdfast.sqlite
{{- end }}
{{- include "holdfast.secretEnv" (list . "HOLDFAST_HOSTS_TOKEN" "hosts-token" false) }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Called with (list root variable key needed). */}}
{{- define "holdfast.secretEnv" }}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "holdfast.secretName" (index . 0) }}
      key: {{ index . 2 }}
      {{- if not (index . 3) }}
      optional: true
      {{- end }}
{{- end -}}

{{/* Called with root: what a relay, in its own pod or in the api's, shows to receivers. */}}
{{- define "holdfast.relayEnv" -}}
{{- include "holdfast.secretEnv" (list . "INTERSERVICES_SHARED_SECRET" "event-api-secret" false) }}
{{- include "holdfast.secretEnv" (list . "HOLDFAST_WEBHOOK_SECRET" "webhook-secret" false) }}
{{- end -}}

{{/* Called with the port: probes over HTTP that never ask Redis. */}}
{{- define "holdfast.httpProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  # Says that the process lives, whatever Redis does: restarting workers does not mend a Redis.
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* Called with (list port readyService startSeconds): probes over gRPC. */}}
{{- define "holdfast.grpcProbes" -}}
startupProbe:
  grpc: {port: {{ index . 0 }}}
  periodSeconds: 2
  failureThreshold: {{ div (index . 2) 2 }}
livenessProbe:
  grpc: {port: {{ index . 0 }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  grpc:
    port: {{ index . 0 }}
    {{- with index . 1 }}
    service: {{ . }}
    {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* Called with (list root component name pdb). */}}
{{- define "holdfast.pdb" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "holdfast.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ (index . 3).maxUnavailable }}
  # What is broken anyway may be evicted, else it holds up a node for ever.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "holdfast.selector" . | nindent 6 }}
{{- end -}}
