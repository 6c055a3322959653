#!/usr/bin/env bash
# Runs a command in front of a real pair of engines: installs it, starts it, sees that it works, and ends it, whatever happens.
#
#   run.sh vllm|sglang COMMAND…   with INNKEEPER_ENGINES naming the file that says where the pair is
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
kind=${1:-}
case "$kind" in
    vllm | sglang) shift ;;
    *)
        echo "usage: run.sh vllm|sglang COMMAND…" >&2
        exit 64
        ;;
esac
[ $# -gt 0 ] || set -- true

"$here/setup.sh" "$kind"
dir=$("$here/setup.sh" path)
readonly dir

# One pair at a time: each takes a core for itself, and 5 GiB.
exec 9>"$dir/lock"
flock --nonblock 9 || {
    echo "engines: error: another run has a pair up, or is ending it ($dir/lock)" >&2
    exit 1
}

ended() {
    local code=$?
    trap - EXIT INT TERM HUP
    if [ $code -ne 0 ] && [ -d "$dir/run" ]; then
        rm -rf "$dir/logs"
        mkdir -p "$dir/logs"
        local side
        for side in prefill decode; do cp "$dir/run/$side/log" "$dir/logs/$side.log" 2>/dev/null || true; done
        echo "engines: not all went well; what the engines said is in $dir/logs" >&2
    fi
    python3 "$here/pair.py" stop 9>&- || code=1
    exit $code
}
trap ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Without the lock: it is held by this shell alone, so that it goes when this is killed.
pair=$(python3 "$here/pair.py" start "$kind" 9>&-)
python3 "$here/check.py" "$pair" 9>&-
INNKEEPER_ENGINES=$pair "$@" 9>&-
