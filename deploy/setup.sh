#!/usr/bin/env bash
# Installs what this machine lacks to run Innkeeper (`serve`), to test it (`test`), to make its image (`image`) or to run a
# Kubernetes for it (`cluster`), says what it installs, and installs nothing when everything is there: running it twice, or
# without a network, is fine then.
#
#   deploy/setup.sh serve|test|image|cluster
#
# Debian packages come by apt-get (as root, or through sudo); Rust by rustup, into the home directory; the Python
# packages of the tests into .cache/venv of this checkout. The variable ARGS holds the arguments that `innkeeper up`
# will get: a run with another model than the default one does not need pip.
set -euo pipefail

# The oldest compiler that the workspace takes (`rust-version` in Cargo.toml), and the one that is installed if there
# is none: the one that the lints were last checked with.
readonly RUST_OLDEST=1.88
readonly RUST_INSTALLED=1.95.0
readonly RUSTUP_URL=https://sh.rustup.rs
# What the API is tested with: two client libraries, and what holds it against its OpenAPI document. The page at /ui: what drives
# the browser (of Debian; none is downloaded), and what judges whether everybody can use it. And the chart: what holds its objects
# against Kubernetes' schemas.
readonly PYTHON_PACKAGES=(openai==3.57.0 litellm==1.110.2 schemathesis==4.32.5 playwright==1.65.2 axe-playwright-python==0.1.8
    kubernetes-validate==1.37.0)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
readonly venv="$root/.cache/venv"

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
# Whether version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# === Debian packages ===

missing=()
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

can_link() {
    have cc && printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | cc -x c - -o /dev/null
}
# Debian keeps tc where only root has its PATH.
has_network_tools() { (PATH="$PATH:/usr/sbin:/sbin" && have ip && have tc && have ss); }
has_browser() { have chromium || have chromium-browser || have google-chrome; }
have_as_root() { (PATH="$PATH:/usr/sbin:/sbin" && have "$1"); }
has_pip() { python3 -m pip --version || pip3 --version; }
venv_is_whole() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }
has_venv() { venv_is_whole || python3 -c 'import ensurepip, venv'; }

# The default model comes out of a Python wheel, by pip, when the program first needs it.
model_is_there() {
    local cache=${INNKEEPER_CACHE:-${XDG_CACHE_HOME:+$XDG_CACHE_HOME/innkeeper}}
    [ -s "${cache:-${HOME:-/root}/.cache/innkeeper}/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ]
}
uses_another_model() {
    case " ${ARGS:-} " in
        *" --model"[\ =]* | *" --engine mock "* | *" --engine=mock "*) return 0 ;;
        *) [ -n "${INNKEEPER_MODEL:-}" ] || [ "${INNKEEPER_ENGINE:-}" = mock ] ;;
    esac
}

look_for_packages() {
    # Some crates compile C.
    need gcc can_link
    need libc6-dev can_link
    need make have make
    need pkg-config have pkg-config
    if ! have cargo && ! [ -x "$cargo_bin/cargo" ]; then
        need curl have curl
        need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    fi
    if [ "$1" = test ]; then
        # The tests run the lease store against a real etcd.
        need etcd-server have etcd
        need etcd-client have etcdctl
        # One of them speaks TLS, with certificates of its own.
        need openssl have openssl
        # The fuzzer's engine is C++.
        need g++ have g++
        # `innkeeper top` runs in a terminal of its own.
        need tmux have tmux
        # They put nodes into networks of their own, and cut these.
        need iproute2 has_network_tools
        need python3 have python3
        need python3-venv has_venv
        # promtool reads what nodes show of themselves, and the rules.
        need prometheus have promtool
    fi
    if [ "$1" = image ] || [ "$1" = cluster ]; then
        need binutils have strip
        need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
        need python3 have python3
    fi
    if [ "$1" = cluster ]; then
        need containerd have_as_root containerd
        need runc have_as_root runc
        need containernetworking-plugins test -x /usr/lib/cni/bridge
        need iptables have_as_root iptables
        need conntrack have_as_root conntrack
        need ipset have_as_root ipset
        need etcd-server have etcd
        need openssl have openssl
        need curl have curl
        need iproute2 has_network_tools
        # Go comes as a Python package where there is none.
        need python3-venv has_venv
        need python3-pip has_pip
    fi
    if [ "$1" = test ] || { ! model_is_there && ! uses_another_model; }; then
        need python3 have python3
        need python3-pip has_pip
    fi
}

install_packages() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local packages
    packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
    packages=${packages% }
    have apt-get || fail "this machine lacks $packages and has no apt-get; install them (names are Debian's) and run this again"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "this machine lacks $packages; run as root: apt-get install $packages"
        as_root=(sudo)
    fi
    say "installing Debian packages: $packages"
    case " $packages " in
        *" etcd-server "*) say "etcd-server may also start a service; the tests start their own servers and do not use it" ;;
    esac
    case " $packages " in
        *" containerd "*) say "containerd may also start a service; the test cluster starts its own" ;;
    esac
    case " $packages " in
        *" prometheus "*) say "prometheus may also start a service; the tests use its promtool alone" ;;
    esac
    "${as_root[@]}" apt-get update -qq || fail "apt-get update failed; check the network, or install by hand: $packages"
    # shellcheck disable=SC2086 # a list of names
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages ||
        fail "apt-get could not install: $packages"
}

# === A browser, for the tests of the page at /ui ===

# They skip themselves, and say so, where none can be had.
ensure_browser() {
    has_browser && return 0
    missing=(chromium fonts-dejavu-core)
    (install_packages) || say "there is no browser: the tests of the page at /ui will be skipped"
}

# === Rust ===

readonly cargo_bin="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"

rust_version() { cargo --version 2>/dev/null | awk '{ print $2 }'; }
rust_advice() {
    fail "$1; install Rust $RUST_OLDEST or newer (https://rustup.rs), so that \`cargo --version\` says so, and run this again"
}

install_rust() {
    local installer
    installer=$(mktemp)
    say "installing Rust $RUST_INSTALLED by rustup, into ${CARGO_HOME:-~/.cargo} and ${RUSTUP_HOME:-~/.rustup}"
    if ! curl --proto '=https' --tlsv1.2 -fsS --retry 2 --connect-timeout 20 -o "$installer" "$RUSTUP_URL"; then
        rm -f "$installer"
        rust_advice "there is no usable Rust here and $RUSTUP_URL cannot be reached"
    fi
    # An older Rust of the system may stay: this one comes first on PATH.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --no-modify-path --profile minimal \
        --component rustfmt --component clippy --default-toolchain "$RUST_INSTALLED" ||
        { rm -f "$installer"; rust_advice "rustup could not install Rust $RUST_INSTALLED"; }
    rm -f "$installer"
}

ensure_rust() {
    local version
    version=$(cd "$root" && rust_version || true)
    if [ -z "$version" ] && ! have rustup; then
        install_rust
    elif [ -z "$version" ] || ! at_least "$version" "$RUST_OLDEST"; then
        if have rustup; then
            say "installing Rust $RUST_INSTALLED by rustup, for this directory (found: ${version:-no toolchain}, needed: $RUST_OLDEST)"
            rustup toolchain install "$RUST_INSTALLED" --profile minimal --component rustfmt --component clippy ||
                rust_advice "rustup could not install Rust $RUST_INSTALLED"
            rustup override set "$RUST_INSTALLED" --path "$root" || rust_advice "rustup could not select Rust $RUST_INSTALLED"
        else
            say "Rust $version is too old: $RUST_OLDEST or newer is needed"
            install_rust
        fi
    fi
    version=$(cd "$root" && rust_version || true)
    if [ -z "$version" ] || ! at_least "$version" "$RUST_OLDEST"; then
        rust_advice "cargo is ${version:-not there} after the installation"
    fi
}

ensure_lint_tools() {
    local component
    for component in fmt:rustfmt clippy:clippy; do
        (cd "$root" && cargo "${component%%:*}" --version) >/dev/null 2>&1 && continue
        have rustup || fail "\`cargo ${component%%:*}\` is missing; install your distribution's ${component##*:}"
        say "installing ${component##*:} by rustup"
        (cd "$root" && rustup component add "${component##*:}") || fail "rustup could not install ${component##*:}"
    done
}

# === Python, for the tests of the API with the clients of others ===

has_python_packages() {
    local program='import sys; from importlib.metadata import version
pins = dict(pin.split("==") for pin in sys.argv[1:])
sys.exit(any(version(name) != pin for name, pin in pins.items()))'
    "$venv/bin/python" -c "$program" "${PYTHON_PACKAGES[@]}" >/dev/null 2>&1
}

ensure_python() {
    has_python_packages && return 0
    say "installing ${PYTHON_PACKAGES[*]} for Python, into .cache/venv of this checkout (some 460 MB, about a minute)"
    mkdir -p "$root/.cache"
    venv_is_whole || python3 -m venv --clear "$venv" || fail "python3 -m venv failed; install python3-venv"
    # Most of what they bring is never imported here.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "${PYTHON_PACKAGES[@]}" ||
        fail "pip could not install ${PYTHON_PACKAGES[*]}; check the network and pip's index"
    has_python_packages ||
        fail "${PYTHON_PACKAGES[*]} are not all found by $venv/bin/python; remove .cache/venv and run this again"
}

# === Jaeger, for the tests of the spans ===

ensure_jaeger() {
    "$root/deploy/jaeger.sh" build || fail "the tests of the spans need Jaeger; see above"
}

# === Helm, for the tests of the chart ===

ensure_helm() {
    "$root/deploy/helm.sh" get || fail "the tests of the chart need Helm; see above"
}

main() {
    local purpose=${1:-}
    case "$purpose" in
        serve | test | image | cluster) ;;
        *)
            echo "usage: deploy/setup.sh serve|test|image|cluster" >&2
            exit 64
            ;;
    esac
    export PATH="$cargo_bin:$PATH"
    look_for_packages "$purpose"
    install_packages
    ensure_rust
    if [ "$purpose" = test ]; then
        ensure_browser
        ensure_lint_tools
        ensure_python
        ensure_jaeger
    fi
    if [ "$purpose" = test ] || [ "$purpose" = cluster ]; then
        ensure_helm
    fi
    say "everything that \`make $purpose\` needs is here (Rust $(cd "$root" && rust_version))"
}

main "$@"
