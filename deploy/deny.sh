#!/usr/bin/env bash
# Holds what the project is built from against deny.toml: known vulnerabilities, licences, sources, and crates that are not to
# be there. Fails if one of them finds something.
#
#   deploy/deny.sh
#
# The database of vulnerabilities comes over the network. Where it cannot be had that is said, loudly and at the end once more,
# and the rest is checked all the same. cargo-deny itself is installed into .cache where it is missing, which takes minutes.
set -euo pipefail

readonly CARGO_DENY=0.20.2

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PATH="$root/.cache/cargo-deny/bin:$PATH"

if [ "$(cargo deny --version 2>/dev/null)" != "cargo-deny $CARGO_DENY" ]; then
    echo "deny: installing cargo-deny $CARGO_DENY into .cache"
    cargo install cargo-deny --version "=$CARGO_DENY" --locked --quiet --root .cache/cargo-deny
fi

# Both workspaces: the fuzzer's has crates of its own.
manifests=(Cargo.toml integration/fuzz/Cargo.toml)
for manifest in "${manifests[@]}"; do
    cargo deny --config "$root/deny.toml" --manifest-path "$manifest" --locked check --hide-inclusion-graph licenses bans sources
done

if ! cargo deny --config "$root/deny.toml" --locked fetch db; then
    echo
    echo '*** deny: THE DATABASE OF VULNERABILITIES CANNOT BE FETCHED. Known vulnerabilities were NOT looked for.'
    echo '*** deny: licences, sources and bans were checked. Run deploy/deny.sh again where the network reaches it.'
    exit 0
fi
for manifest in "${manifests[@]}"; do
    cargo deny --config "$root/deny.toml" --manifest-path "$manifest" --locked --offline check --hide-inclusion-graph advisories
done
echo 'deny: no known vulnerability, and every licence and source is one of the list'
