{{- define "narthex.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "narthex.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "narthex.labels" -}}
{{ include "narthex.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "narthex.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "narthex.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "narthex.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "narthex.servingSecret" -}}
{{- default (printf "%s-serving" (include "narthex.fullname" .)) .Values.servingCertificate.existingSecret -}}
{{- end -}}

{{- define "narthex.frontProxySecret" -}}
{{- default (printf "%s-front-proxy" (include "narthex.fullname" .)) .Values.frontProxy.existingSecret -}}
{{- end -}}

{{/* DNS names of the serving certificate, as a JSON list in an object. */}}
{{- define "narthex.dnsNames" -}}
{{- $name := include "narthex.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) "localhost" -}}
{{- dict "names" (concat $names .Values.servingCertificate.extraDNSNames) | toJson -}}
{{- end -}}

{{/* Mistakes that the schema cannot express. */}}
{{- define "narthex.validate" -}}
{{- if not (or .Values.registry.cluster .Values.registry.manifests .Values.delegate.enabled) -}}
{{- fail "the gateway has no APIServices: set registry.cluster, registry.manifests or delegate.enabled" -}}
{{- end -}}
{{- if and .Values.delegate.enabled (not .Values.frontProxy.existingSecret) -}}
{{- fail "delegate.enabled needs frontProxy.existingSecret: kube-apiserver trusts only the cluster's own front-proxy certificate" -}}
{{- end -}}
{{- if and .Values.servingCertificate.certManager.enabled (not .Values.servingCertificate.certManager.issuerRef.name) -}}
{{- fail "servingCertificate.certManager.enabled needs servingCertificate.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .Values.servingCertificate.certManager.enabled .Values.servingCertificate.existingSecret -}}
{{- fail "set one of servingCertificate.existingSecret and servingCertificate.certManager.enabled" -}}
{{- end -}}
{{- end -}}

{{/* The file of --config. */}}
{{- define "narthex.config" -}}
{{- $config := dict
  "apiVersion" "narthex.dev/v1alpha1"
  "kind" "GatewayConfiguration"
  "dataDir" "/var/lib/narthex"
  "bindAddress" "0.0.0.0"
  "securePort" 6443
  "adminAddress" ":6480"
  "logFormat" "json"
  "tlsCertFile" "/etc/narthex/serving/tls.crt"
  "tlsPrivateKeyFile" "/etc/narthex/serving/tls.key"
  "proxyClientCertFile" "/etc/narthex/front-proxy/tls.crt"
  "proxyClientKeyFile" "/etc/narthex/front-proxy/tls.key"
  "shutdownDelayDuration" .Values.shutdownDelayDuration -}}
{{- if .Values.registry.cluster -}}
{{- $config = merge $config (dict "kubeconfig" "in-cluster" "leaderElectResourceName" (include "narthex.fullname" .) "leaderElectResourceNamespace" .Release.Namespace) -}}
{{- end -}}
{{- if .Values.registry.manifests -}}
{{- $config = merge $config (dict "registryDir" "/etc/narthex/registry") -}}
{{- end -}}
{{- if .Values.delegate.enabled -}}
{{- $config = merge $config (dict "delegateKubeconfig" "in-cluster") -}}
{{- end -}}
{{- if .Values.authentication.cluster -}}
{{- $config = merge $config (dict "authenticationKubeconfig" "in-cluster") -}}
{{- end -}}
{{- if .Values.authorization.cluster -}}
{{- $config = merge $config (dict "authorizationMode" (list "Webhook") "authorizationKubeconfig" "in-cluster") -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end -}}
