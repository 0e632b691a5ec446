{{/*
The sidecar, as a native one (Kubernetes 1.29 and later): it starts before the server and ends after it.
In the pod's initContainers:

  initContainers:
  {{- include "narthex-sidecar.container" . | nindent 2 }}
*/}}
{{- define "narthex-sidecar.container" -}}
{{- $values := index .Values "narthex-sidecar" -}}
- name: narthex
  image: {{ $values.image.repository }}:{{ $values.image.tag }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  restartPolicy: Always
  args:
  - sidecar
  - --upstream={{ $values.upstream }}
  - --secure-listen-address=0.0.0.0:{{ $values.port }}
  - --data-dir=/var/lib/narthex
  {{- if $values.servingSecret }}
  - --tls-cert-file=/etc/narthex/serving/tls.crt
  - --tls-private-key-file=/etc/narthex/serving/tls.key
  {{- end }}
  {{- range $values.extraArgs }}
  - {{ . | quote }}
  {{- end }}
  ports:
  - {name: https, containerPort: {{ $values.port }}}
  livenessProbe:
    httpGet: {path: /livez, port: https, scheme: HTTPS}
  readinessProbe:
    httpGet: {path: /readyz, port: https, scheme: HTTPS}
  {{- with $values.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
  - {name: narthex-data, mountPath: /var/lib/narthex}
  {{- if $values.servingSecret }}
  - {name: narthex-serving, mountPath: /etc/narthex/serving, readOnly: true}
  {{- end }}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The volumes of that container, in the pod's volumes. */}}
{{- define "narthex-sidecar.volumes" -}}
{{- $values := index .Values "narthex-sidecar" -}}
- name: narthex-data
  emptyDir: {sizeLimit: 64Mi}
{{- with $values.servingSecret }}
- name: narthex-serving
  secret: {secretName: {{ . }}}
{{- end }}
{{- end -}}

{{/*
What the sidecar asks of the cluster: TokenReviews, SubjectAccessReviews, and the authorities of clients. As documents of
their own; serviceAccountName is the pod's:

  {{ include "narthex-sidecar.rbac" (dict "context" . "serviceAccountName" "library") }}
*/}}
{{- define "narthex-sidecar.rbac" -}}
{{- $namespace := .context.Release.Namespace -}}
{{- $account := required "narthex-sidecar.rbac: serviceAccountName" .serviceAccountName -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $namespace }}:{{ $account }}:auth-delegator
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: system:auth-delegator
subjects:
- {kind: ServiceAccount, name: {{ $account }}, namespace: {{ $namespace }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $namespace }}:{{ $account }}:authentication-reader
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: extension-apiserver-authentication-reader
subjects:
- {kind: ServiceAccount, name: {{ $account }}, namespace: {{ $namespace }}}
{{- end -}}
