{{/* How long processes need to leave: a grace that is shorter kills them while they give back what they hold. */}}

{{/* Called with (list value unit): the seconds of a duration as holdfast.yaml has it, a bare number being in the unit. */}}
{{- define "holdfast.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $text := index . 0 | toString | lower -}}
{{- if regexMatch "^[0-9.e+]+$" $text -}}
{{- mulf (float64 $text) (get $units (index . 1)) -}}
{{- else -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+\\s*(ms|s|m|h|d)" $text -1 -}}
{{- $total = addf $total (mulf (float64 (regexFind "[0-9.]+" .)) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}
{{- end -}}

{{/* Called with (list root part key default): what redis.scheduler says of one of its parts, in seconds. */}}
{{- define "holdfast.schedulerSeconds" -}}
{{- $given := dig "redis" "scheduler" (index . 1) (index . 2) (index . 3) (index . 0).Values.settings -}}
{{- include "holdfast.seconds" (list $given "ms") -}}
{{- end -}}

{{/* What a scheduler does at once when it leaves: turns end, are stopped, and are given back; its passes end or are stopped. */}}
{{- define "holdfast.schedulerDrain" -}}
{{- $await := "executor-shutdown-await-ms" -}}
{{- $force := "executor-shutdown-force-await-ms" -}}
{{- $forced := float64 (include "holdfast.schedulerSeconds" (list . "zombie-cleanup" $force 5000)) -}}
{{- $turns := addf (float64 (include "holdfast.schedulerSeconds" (list . "zombie-cleanup" $await 10000))) $forced $forced 1.0 -}}
{{- $sweep := addf (float64 (include "holdfast.schedulerSeconds" (list . "orphan-cleanup" $await 10000))) (float64 (include "holdfast.schedulerSeconds" (list . "orphan-cleanup" $force 5000))) -}}
{{- $reconcile := addf (float64 (include "holdfast.schedulerSeconds" (list . "reconcile" $await 5000))) (float64 (include "holdfast.schedulerSeconds" (list . "reconcile" $force 2000))) -}}
{{- ceil (maxf $turns $sweep $reconcile) -}}
{{- end -}}

{{/* The shortest grace of each process that the other values don't decide, and why. */}}
{{- define "holdfast.needed" -}}
{{- $drain := int64 (include "holdfast.schedulerDrain" .) -}}
{{- $answer := int64 (ceil (include "holdfast.seconds" (list (dig "relay" "timeout_seconds" 10 .Values.settings) "s"))) -}}
scheduler: {seconds: {{ add $drain 9 }}, why: "its turns and passes may take {{ $drain }} s to end (executor-shutdown-await-ms and -force-await-ms of redis.scheduler) and its goodbye 9 s"}
relay: {seconds: {{ add $answer 20 }}, why: "a receiver may take {{ $answer }} s to answer (relay.timeout_seconds) and giving back what waits 20 s"}
janitor: {seconds: 10, why: "giving its offices back and its goodbye may take 8 s"}
{{- if eq .Values.keda.profile "external-push" }}
scaler: {seconds: 10, why: "answering whoever asks and its goodbye may take 8 s"}
{{- end }}
{{- end -}}

{{/* Called with (list root name): the grace that was given, or what is needed and 15 s more. */}}
{{- define "holdfast.grace" -}}
{{- $needed := get (include "holdfast.needed" (index . 0) | fromYaml) (index . 1) -}}
{{- default (add (int64 $needed.seconds) 15) (int64 (get (index . 0).Values (index . 1)).terminationGracePeriodSeconds) -}}
{{- end -}}

{{/* How long all agents of a host need to move: eight at a time. */}}
{{- define "holdfast.hostGrace" -}}
{{- add (ceil (divf (mulf .Values.host.stopSeconds .Values.host.maxProcesses) 8)) 30 -}}
{{- end -}}
