{{/* The container with topo-lb: the agent, or the clean-up. */}}
{{- define "topo-lb.container" -}}
{{- if and .Values.kubeProxyReplacement (not (or .Values.k8sServiceHost .Values.apiServer .Values.kubeconfigSecret.name)) }}
{{- fail "kubeProxyReplacement needs k8sServiceHost, the control plane's own address, or apiServer, or kubeconfigSecret: the ClusterIP of the API server works only when the agent does" }}
{{- end }}
{{- if and .Values.apiServer .Values.kubeconfigSecret.name }}
{{- fail "apiServer and kubeconfigSecret.name exclude each other: an agent follows one API server" }}
{{- end }}
name: {{ ternary "cleanup" "agent" .Values.cleanup }}
{{ include "topo-lb.image" . }}
{{- if .Values.cleanup }}
args: [cleanup]
{{- else }}
args: {{ concat (list "agent") (ternary (list "--count=all") (list) (eq .Values.count "all")) .Values.extraArgs | toJson }}
{{- end }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: TOPO_LB_SCOPE
    value: {{ ternary "all" .Values.scope .Values.kubeProxyReplacement }}
  {{- if and .Values.directReturn (not .Values.cleanup) }}
  - name: TOPO_LB_DIRECT_RETURN
    value: auto
  {{- end }}
  {{- if .Values.kubeProxyReplacement }}
  - name: TOPO_LB_KUBE_PROXY_REPLACEMENT
    value: "true"
  {{- end }}
  {{- with .Values.k8sServiceHost }}
  # By default an agent asks at the ClusterIP of `kubernetes`, which works only when the agent does.
  - name: KUBERNETES_SERVICE_HOST
    value: {{ . }}
  - name: KUBERNETES_SERVICE_PORT
    value: {{ $.Values.k8sServicePort | quote }}
  {{- end }}
  - name: TOPO_LB_LOG_FORMAT
    value: {{ .Values.logFormat }}
  # For listen.onNode. A variable must come after those that it refers to, and an apply on the server
  # adds new ones at the end.
  - name: HOST_IP
    valueFrom:
      fieldRef:
        fieldPath: status.hostIP
  - name: TOPO_LB_LISTEN
    value: {{ printf "127.0.0.1:%v" .Values.listen.port }}
  # Where `topo-lb probe` asks the agent. Not a port, because another process can take a port.
  - name: TOPO_LB_PROBE_SOCKET
    value: /run/topo-lb/probes/socket
  {{- if .Values.listen.onNode }}
  - name: TOPO_LB_METRICS_LISTEN
    value: {{ printf "$(HOST_IP):%v" .Values.listen.port }}
  {{- end }}
  # The container runtimes' AppArmor profile forbids writes below a container's own /sys/fs/bpf, so
  # the node's bpffs is mounted elsewhere. `kubectl exec` finds it here.
  {{- include "topo-lb.places" . | nindent 2 }}
  {{- if .Values.stateDir }}
  - name: TOPO_LB_STATE_DIR
    value: /var/lib/topo-lb
  {{- end }}
  {{- with .Values.exclude.namespaces }}
  - name: TOPO_LB_EXCLUDE_NAMESPACES
    value: {{ join "," . | quote }}
  {{- end }}
  {{- if .Values.exclude.annotatedPods }}
  - name: TOPO_LB_EXCLUDE_ANNOTATED_PODS
    value: "true"
  {{- end }}
  {{- with .Values.steer.namespaces }}
  - name: TOPO_LB_STEER_NAMESPACES
    value: {{ join "," . | quote }}
  {{- end }}
  {{- if .Values.steer.annotatedPods }}
  - name: TOPO_LB_STEER_ANNOTATED_PODS
    value: "true"
  {{- end }}
  {{- if .Values.dns.enabled }}
  - name: TOPO_LB_DNS
    value: "true"
  - name: TOPO_LB_DNS_SERVICE
    value: {{ .Values.dns.service }}
  - name: TOPO_LB_DNS_DOMAIN
    value: {{ .Values.dns.domain }}
  - name: TOPO_LB_DNS_PORT
    value: {{ .Values.dns.port | quote }}
  {{- end }}
  {{- with .Values.apiServer }}
  - name: TOPO_LB_API_SERVER
    value: {{ . }}
  {{- end }}
  {{- if .Values.kubeconfigSecret.name }}
  - name: TOPO_LB_KUBECONFIG
    value: /etc/topo-lb/kubeconfig/{{ .Values.kubeconfigSecret.key }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
# `kubectl describe` shows the last lines of an agent that failed.
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- include "topo-lb.securityContext" . | nindent 2 }}
{{- if not .Values.cleanup }}
{{- if .Values.listen.onNode }}
ports:
  - name: metrics
    containerPort: {{ .Values.listen.port }}
    hostPort: {{ .Values.listen.port }}
    protocol: TCP
{{- end }}
# livez: the task that owns the state makes progress. readyz: a connection of the agent's own was
# translated, and the state of the API server is in the maps. Both use a Unix socket that only this
# container has, so no other process can block the kubelet or take the port. An exec probe costs the node
# more than an HTTP request, so it runs less often.
livenessProbe:
  exec:
    command: [/topo-lb, probe, livez]
  initialDelaySeconds: 10
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  exec:
    command: [/topo-lb, probe, readyz]
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
resources: {{ .Values.resources | toJson }}
volumeMounts:
  {{- include "topo-lb.mounts" . | nindent 2 }}
  - name: probes
    mountPath: /run/topo-lb/probes
  {{- if .Values.stateDir }}
  - name: state
    mountPath: /var/lib/topo-lb
  {{- end }}
  {{- if .Values.kubeconfigSecret.name }}
  - name: kubeconfig
    mountPath: /etc/topo-lb/kubeconfig
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "topo-lb.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "topo-lb.places" -}}
- name: TOPO_LB_PIN_DIR
  value: /run/topo-lb/bpf/{{ .Values.pins }}
- name: TOPO_LB_CGROUP_ROOT
  value: /run/topo-lb/cgroup
{{- end }}

{{- define "topo-lb.mounts" -}}
# HostToContainer: the container sees later mounts of the node.
- name: bpffs
  mountPath: /run/topo-lb/bpf
  mountPropagation: HostToContainer
- name: cgroup
  mountPath: /run/topo-lb/cgroup
  mountPropagation: HostToContainer
{{- end }}

{{- define "topo-lb.volumes" -}}
- name: bpffs
  hostPath:
    path: /sys/fs/bpf
    type: Directory
- name: cgroup
  hostPath:
    path: {{ .Values.cgroupRoot }}
    type: Directory
{{- end }}

{{/* A profile of seccomp or AppArmor: `Localhost/NAME` names one of the node. */}}
{{- define "topo-lb.profile" -}}
type: {{ splitList "/" . | first }}
{{- if hasPrefix "Localhost/" . }}
localhostProfile: {{ trimPrefix "Localhost/" . }}
{{- end }}
{{- end }}

{{- define "topo-lb.securityContext" -}}
# Not privileged: root, because root owns bpffs and the cgroups, with only these capabilities.
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: {{ include "topo-lb.capabilities" . }}
# The default profiles of many runtimes allow bpf(2) only with SYS_ADMIN, even with BPF.
seccompProfile: {{- include "topo-lb.profile" .Values.seccompProfile | nindent 2 }}
{{- with .Values.appArmorProfile }}
appArmorProfile: {{- include "topo-lb.profile" . | nindent 2 }}
{{- end }}
# With SELinux, only this container type can write to bpffs. Ignored without SELinux.
seLinuxOptions:
  type: spc_t
{{- end }}

{{/* Which nodes. */}}
{{- define "topo-lb.nodes" -}}
tolerations: {{ .Values.tolerations | toJson }}
nodeSelector: {{ .Values.nodeSelector | toJson }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "topo-lb.capabilities" -}}
{{- $old := ternary (list "SYS_RESOURCE") (list) (and .Values.sysResource (not .Values.cleanup)) }}
{{- $sockets := ternary (list "SYS_ADMIN" "SYS_PTRACE") (list) .Values.endSockets }}
{{- $probes := ternary (list "NET_RAW") (list) (and .Values.directReturn (not .Values.cleanup)) }}
{{- concat .Values.capabilities $old $sockets $probes | toJson }}
{{- end }}
