#!/usr/bin/env bash
# All of `make e2e`: the image, what the cluster is made of, the cluster, every scenario, and the end of it, also if something
# fails or Ctrl-C is pressed. It prints how long each step took.
#
#   integration/kubernetes/whole.sh [SCENARIO…]
#
# PROGRAMS=DIR takes the programs that are there instead of building them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly deploy="$here/../../deploy"
steps=()

# step NAME COMMAND...
step() {
    local name=$1 began=$SECONDS
    shift
    "$@"
    steps+=("$name $((SECONDS - began)) s")
}
end() {
    local status=$?
    trap - EXIT
    step end "$here/cluster.sh" down
    told
    exit "$status"
}
told() {
    local list
    list=$(printf '%s, ' "${steps[@]}")
    printf 'e2e: steps: %s\n' "${list%, }"
}

step image "$deploy/image.py" build ${PROGRAMS:+--programs "$PROGRAMS"}
step kubernetes "$here/build.sh"
step jaeger "$deploy/jaeger.sh" build
# It ends by itself what it has begun, and leaves alone what was up before.
step up "$here/cluster.sh" up 2
trap end EXIT
trap 'exit 130' INT TERM
step scenarios "$here/e2e.py" "$@"
