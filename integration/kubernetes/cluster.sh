#!/usr/bin/env bash
# A real Kubernetes on this machine, without Docker and without a network: API server, controllers, scheduler, kubelets,
# kube-proxy, CoreDNS, containerd, runc, CNI, and kube-router, which enforces NetworkPolicy. The control plane and each node
# live in network namespaces of their own, so that nodes can be drained, stopped and cut off, and no packet leaves the machine.
#
#   cluster.sh up [NODES]     start it (2 nodes), once `build.sh` has built what it is made of
#   cluster.sh down           end it and remove all of it, also what a crash has left
#   cluster.sh kubectl …      kubectl against it
#   cluster.sh helm …         Helm against it
#   cluster.sh on NODE …      a command in a node's network, where Services can be reached
#   cluster.sh load FILE…     import images on every node
#   cluster.sh freeze NODE    stop every process of a node, pods and Kubernetes' own; `thaw NODE` lets them go on
#   cluster.sh cut NODE       take its network away; `join NODE` gives it back
#
# Root is needed, and the Debian packages of `deploy/setup.sh cluster`. Everything that runs lies in /run/innkeeper-k8s.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly repository="$here/../.."
# A shell of root without a login may lack these.
export PATH="$PATH:/usr/sbin:/sbin"
bin=$("$here/build.sh" path)
tools=$("$repository/deploy/helm.sh" path)
readonly bin tools
readonly root=/run/innkeeper-k8s
# 198.18.0.0/15 is for test networks (RFC 2544). The control plane is .0.1, node n is .0.(10+n), its pods are .(10+n).0/24.
readonly net=198.18
readonly control=$net.0.1
readonly services=198.19.0.0/16
readonly prefix=ik8s

say() { printf 'cluster: %s\n' "$*" >&2; }
fail() {
    printf 'cluster: error: %s\n' "$*" >&2
    exit 1
}
# `ip netns exec` would mount /sys anew and hide the cgroups from the kubelet.
within() { nsenter --net="/run/netns/$1" "${@:2}"; }
kubectl() { within $prefix-cp "$tools/kubectl" --kubeconfig "$root/admin.kubeconfig" "$@"; }

# keep NAME NAMESPACE COMMAND...: starts it in the background; its log has its name
keep() {
    local name=$1 namespace=$2
    shift 2
    within "$namespace" setsid "$@" >"$root/log/$name.log" 2>&1 &
}
# wait_for SECONDS WHAT COMMAND...
wait_for() {
    local limit=$1 what=$2 until
    shift 2
    until=$((SECONDS + limit))
    while ! "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || fail "gave up waiting for $what after $limit s; the logs are in $root/log"
        sleep 0.2
    done
}

# === Certificates ===

# cert NAME CN ORGANISATION [SAN]
cert() {
    local pki=$root/pki
    openssl req -newkey rsa:2048 -nodes -keyout "$pki/$1.key" -out "$pki/$1.csr" -subj "/O=$3/CN=$2" 2>/dev/null
    openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 30 -out "$pki/$1.crt" \
        -extfile <(printf 'extendedKeyUsage=clientAuth,serverAuth\nsubjectAltName=%s\n' "${4:-DNS:$1}") 2>/dev/null
    cat >"$root/$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$control:6443", certificate-authority: $pki/ca.crt}}]
users: [{name: u, user: {client-certificate: $pki/$1.crt, client-key: $pki/$1.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
K
}
certificates() {
    local pki=$root/pki
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$pki/ca.key" -out "$pki/ca.crt" -days 30 -subj /CN=innkeeper-test-ca 2>/dev/null
    openssl genrsa -out "$pki/sa.key" 2048 2>/dev/null
    openssl rsa -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
    cert apiserver kube-apiserver k8s \
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:$control,IP:127.0.0.1,IP:198.19.0.1"
    cert admin admin system:masters
    cert controller system:kube-controller-manager k8s
    cert scheduler system:kube-scheduler k8s
}

# === The control plane ===

control_plane() {
    local pki=$root/pki
    ip netns add $prefix-cp
    within $prefix-cp ip link set lo up
    within $prefix-cp ip link add br0 type bridge
    within $prefix-cp ip addr add $control/24 dev br0
    within $prefix-cp ip link set br0 up
    within $prefix-cp ip route add default dev br0
    within $prefix-cp sysctl -qw net.ipv4.ip_forward=1

    keep etcd $prefix-cp etcd --data-dir "$root/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    wait_for 60 etcd within $prefix-cp curl -fs http://127.0.0.1:2379/health
    keep apiserver $prefix-cp "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --advertise-address=$control \
        --secure-port=6443 --service-cluster-ip-range=$services --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --allow-privileged=true --kubelet-preferred-address-types=InternalIP \
        --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
        --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
        --kubelet-certificate-authority="$pki/ca.crt" --service-account-issuer=https://kubernetes.default.svc \
        --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key"
    wait_for 180 "the API server" kubectl get --raw /readyz
    keep controllers $prefix-cp "$bin/kube-controller-manager" --kubeconfig="$root/controller.kubeconfig" --leader-elect=false \
        --use-service-account-credentials --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
        --node-monitor-grace-period=20s --cluster-cidr=$net.0.0/16 --allocate-node-cidrs=false
    keep scheduler $prefix-cp "$bin/kube-scheduler" --kubeconfig="$root/scheduler.kubeconfig" --leader-elect=false
    cat >"$root/Corefile" <<C
.:53 {
    errors
    bind $control
    kubernetes cluster.local { kubeconfig $root/admin.kubeconfig x
        ttl 1
    }
    cache 1
}
C
    keep coredns $prefix-cp "$bin/coredns" -conf "$root/Corefile"
}

# === A node ===

node_network() {
    local namespace=$prefix-n$1
    ip netns add "$namespace"
    ip -n "$namespace" link set lo up
    ip link add "ikv$1" netns $prefix-cp type veth peer name eth0 netns "$namespace"
    within $prefix-cp ip link set "ikv$1" master br0 up
    ip -n "$namespace" addr add "$net.0.$((10 + $1))/24" dev eth0
    ip -n "$namespace" link set eth0 up
    ip -n "$namespace" route add default via $control
    within "$namespace" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
    within $prefix-cp ip route add "$net.$((10 + $1)).0/24" via "$net.0.$((10 + $1))"
}

node_files() {
    local dir=$2
    mkdir -p "$dir/cni" "$dir/kubelet" "$dir/manifests"
    cat >"$dir/cni/10-bridge.conflist" <<C
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$dir/ipam", "ranges": [[{"subnet": "$net.$((10 + $1)).0/24"}]],
           "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
    cat >"$dir/containerd.toml" <<C
version = 2
root = "$dir/containerd"
state = "$dir/run"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/opt"
C
    cat >"$dir/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$dir/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$prefix-n$1
cgroupsPerQOS: true
failCgroupV1: false
failSwapOn: false
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $root/pki/ca.crt}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
tlsCertFile: $root/pki/node$1.crt
tlsPrivateKeyFile: $root/pki/node$1.key
clusterDomain: cluster.local
clusterDNS: ["$control"]
resolvConf: $root/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
nodeStatusUpdateFrequency: 4s
staticPodPath: $dir/manifests
# Each kubelet removes the logs of pods that it does not know.
podLogsDir: $dir/podlogs
K
}

# Version 1 has one tree for each controller, version 2 one for all.
cgroups() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo /sys/fs/cgroup
    else
        find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
    fi
}

node() {
    local number=$1 namespace=$prefix-n$1 dir=$root/node$1 tree
    cert "node$number" "system:node:node$number" system:nodes "DNS:node$number,IP:$net.0.$((10 + number))"
    node_network "$number"
    node_files "$number" "$dir"
    for tree in $(cgroups); do mkdir -p "$tree/$prefix-n$number" 2>/dev/null || true; done
    keep "containerd$number" "$namespace" containerd -c "$dir/containerd.toml"
    wait_for 60 "containerd of node $number" ctr -a "$dir/containerd.sock" version
    ctr -a "$dir/containerd.sock" -n k8s.io images import "$root/pause.tar" >/dev/null
    keep "kubelet$number" "$namespace" "$bin/kubelet" --config "$dir/kubelet.yaml" --kubeconfig "$root/node$number.kubeconfig" \
        --root-dir "$dir/kubelet" --cert-dir "$dir/pki" --hostname-override "node$number" --node-ip "$net.0.$((10 + number))"
    keep "proxy$number" "$namespace" "$bin/kube-proxy" --kubeconfig "$root/admin.kubeconfig" --hostname-override "node$number" \
        --cluster-cidr=$net.0.0/16 --proxy-mode=iptables --conntrack-max-per-core=0 --healthz-bind-address=127.0.0.1:10256
}

policies() {
    local number=$1
    wait_for 120 "node $number" kubectl get node "node$number"
    kubectl wait --for=condition=Ready "node/node$number" --timeout=120s >/dev/null
    # It reads its own node at its start, so it comes last.
    keep "policy$number" "$prefix-n$number" "$bin/kube-router" --kubeconfig "$root/admin.kubeconfig" \
        --hostname-override "node$number" --run-router=false --run-service-proxy=false --run-firewall=true \
        --service-cluster-ip-range=$services --enable-cni=false
    # Without it every test of a refusal would fail, and every other one pass.
    wait_for 60 "the policies of node $number" policies_stand "$number"
}
policies_stand() { within "$prefix-n$1" iptables -S KUBE-ROUTER-FORWARD; }

up() {
    local nodes=${1:-2} number program
    [ "$EUID" -eq 0 ] || fail "network namespaces and cgroups need root"
    [ ! -e $root ] || fail "it is up already, or was not ended: \`make cluster-down\` ends it and removes all of it"
    for program in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns kube-router pause.root/pause; do
        [ -x "$bin/$program" ] || fail "there is no $bin/$program: integration/kubernetes/build.sh builds it"
    done
    mkdir -p $root/{log,pki}
    : >$root/resolv.conf
    ls /run/netns >$root/netns.before 2>/dev/null || true
    # Half a cluster is worth nothing.
    trap 'kept=$(mktemp -d); cp -r $root/log "$kept"; say "not up: ending what there is; logs are kept in $kept"; down' EXIT
    "$repository/deploy/image.py" archive registry.k8s.io/pause:3.10 "$bin/pause.root" $root/pause.tar /pause
    certificates
    control_plane
    for ((number = 1; number <= nodes; number++)); do node "$number"; done
    for ((number = 1; number <= nodes; number++)); do policies "$number"; done
    trap - EXIT
    say "up: $nodes nodes, Kubernetes $("$bin/kubelet" --version | awk '{print $2}')"
}

# === The end ===

# The ids of what `up` has started of these programs, also by what has crashed since: known by program and arguments, since
# ids that were written down may be another's by now.
ours() {
    local dir program
    for dir in /proc/[0-9]*; do
        program=$(readlink "$dir/exe" 2>/dev/null) || continue
        program=${program% (deleted)}
        [[ " $* " == *" ${program##*/} "* ]] || continue
        [[ "$(tr '\0' ' ' 2>/dev/null <"$dir/cmdline")" == *"$root/"* ]] || [[ $program == "$bin"/* ]] || continue
        echo "${dir#/proc/}"
    done
}
# until_gone PROGRAM...: asks them to end, and after a second makes them
until_gone() {
    local pids round
    for round in TERM 0 0 0 0 KILL KILL KILL; do
        pids=$(ours "$@")
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086 # ids
        kill "-$round" $pids 2>/dev/null
        # Those that were frozen hear nothing else.
        # shellcheck disable=SC2086 # ids
        kill -CONT $pids 2>/dev/null
        sleep 0.25
    done
}

# in_cgroups [NUMBER]: the pods' processes, of one node or of all
in_cgroups() {
    local tree
    for tree in $(cgroups); do
        find "$tree" -maxdepth 1 -name "$prefix-n${1:-[0-9]*}" -exec find {} -name cgroup.procs \; 2>/dev/null
    done | xargs -r cat 2>/dev/null | sort -u
}

down() {
    local dir pids
    # Whatever fails, the rest is to be ended too.
    set +e
    # First those that would start again what is ended.
    until_gone kubelet kube-proxy kube-router kube-controller-manager
    # The pods' processes are known by their cgroups, whoever started them.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pids=$(in_cgroups)
        [ -n "$pids" ] || break
        # shellcheck disable=SC2086 # ids
        kill -KILL $pids 2>/dev/null
        sleep 0.2
    done
    until_gone containerd-shim-runc-v2 containerd kube-scheduler kube-apiserver coredns etcd
    awk -v root="$root/" 'index($2, root) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n1 umount -l
    # Our own namespaces, and those that were made for pods meanwhile.
    [ -e $root/netns.before ] || { mkdir -p $root && ls /run/netns 2>/dev/null | grep -v "^$prefix-" >$root/netns.before; }
    ls /run/netns 2>/dev/null | grep -E "^($prefix-|cni-)" | grep -vxFf $root/netns.before | xargs -r -n1 ip netns del
    for dir in $(cgroups); do
        find "$dir" -maxdepth 1 -name "$prefix-n[0-9]*" -exec find {} -depth -type d \; 2>/dev/null | xargs -r rmdir 2>/dev/null
    done
    # Kubelets keep links there, wherever the logs are.
    find /var/log/containers -lname "$root/*" -delete 2>/dev/null
    rm -rf $root
    [ ! -e $root ] || fail "$root could not be removed: something still runs there"
}

# === A node that is stopped, or cut off ===

number_of() {
    [ -d "$root/$1" ] && [[ $1 == node* ]] || fail "there is no node $1"
    echo "${1#node}"
}
# Everything that a node is made of: pods, what runs them, and what speaks of it to the control plane.
of_node() {
    local pid
    in_cgroups "$1"
    for pid in $(ours kubelet kube-proxy kube-router containerd containerd-shim-runc-v2); do
        [[ " $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline")" == *[/\ ]"node$1"[/\ ]* ]] && echo "$pid"
    done
}
signal_node() {
    local number signal=$1 round
    number=$(number_of "$2")
    # Twice: one may have begun another meanwhile. One that has ended meanwhile is no error.
    for round in 1 2; do of_node "$number" | xargs -r kill "-$signal" 2>/dev/null || true; done
}

images() {
    local socket file
    for socket in $root/node*/containerd.sock; do
        for file in "$@"; do ctr -a "$socket" -n k8s.io images import "$file" >/dev/null; done
    done
}

case ${1:-} in
    up) up "${2:-2}" ;;
    down) down ;;
    kubectl) kubectl "${@:2}" ;;
    helm)
        mkdir -p $root/home
        within $prefix-cp env KUBECONFIG=$root/admin.kubeconfig HOME=$root/home "$tools/helm" "${@:2}"
        ;;
    on) within "$prefix-${2/node/n}" "${@:3}" ;;
    load) images "${@:2}" ;;
    freeze) signal_node STOP "${2:-}" ;;
    thaw) signal_node CONT "${2:-}" ;;
    cut) within $prefix-cp ip link set "ikv$(number_of "${2:-}")" down ;;
    join) within $prefix-cp ip link set "ikv$(number_of "${2:-}")" up ;;
    *)
        sed -n '2,16p' "${BASH_SOURCE[0]}"
        exit 64
        ;;
esac
