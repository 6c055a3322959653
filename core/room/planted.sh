#!/usr/bin/env bash
# Plants each bug of planted.tsv in turn and shows that the test named there catches it, by what it says.
#
#   core/room/planted.sh [bug-…]     all, or one: then its whole story is shown
set -euo pipefail
cd "$(dirname "$0")/../.."

table=core/room/planted.tsv
logs=.cache/planted
mkdir -p "$logs"

# One build with all bugs in it; PLANTED chooses.
cargo test --locked -p innkeeper-room --features bugs-by-name --lib --test world --no-run --message-format=json \
    >"$logs/build.json"
program() {
    python3 -c '
import json, sys
for line in open(sys.argv[1]):
    built = json.loads(line)
    target = built.get("target", {})
    name = "lib" if "lib" in target.get("kind", []) else target.get("name")
    if built.get("executable") and name == sys.argv[2]:
        print(built["executable"])
' "$logs/build.json" "$1"
}
# One bug is of the data plane.
cargo test --locked -p innkeeper-transfer --features bug-checksum-at-send --test conformance --no-run \
    --message-format=json >"$logs/transfer.json"
cat "$logs/transfer.json" >>"$logs/build.json"
declare -A programs=([conformance]="$(program conformance)" [lib]="$(program lib)" [world]="$(program world)")

# Without a bug the same tests pass: that they fail below is the bug's doing.
checked=0 missed=0
while IFS=$'\t' read -r bug program test says; do
    [[ $bug == \#* || (-n ${1:-} && $bug != "$1") ]] && continue
    log="$logs/$bug.log"
    checked=$((checked + 1))
    if PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PLANTED=$bug "${programs[$program]}" --exact "$test" --nocapture >"$log" 2>&1; then
        echo "MISSED  $bug: $test passes"
        missed=$((missed + 1))
    elif ! grep -q "1 failed" "$log" || ! grep -qF -- "$says" "$log"; then
        echo "MISSED  $bug: $test fails, but does not say \"$says\" (see $log)"
        missed=$((missed + 1))
    else
        echo "caught  $bug by $test: $(grep -m1 -F -- "$says" "$log" | cut -c1-140)"
    fi
    if [[ -n ${1:-} ]]; then cat "$log"; fi
done <"$table"

echo "planted bugs: $checked tried, $missed missed"
[[ $checked -gt 0 && $missed -eq 0 ]]
