#!/usr/bin/env bash
# Fuzzes every target, one after the other, and fails if one of them finds something.
#
#   integration/fuzz/run.sh [seconds per target]   60 if not said
#   integration/fuzz/run.sh seeds                  writes the seeds of the corpus anew
#
# A stable Rust is enough: the fuzzer's instruments are an LLVM pass that every compiler has. SANITIZER=address adds the
# address sanitizer, with RUSTC_BOOTSTRAP=1, because its flag is not stable. TARGETS="frame http" runs only these.
#
# What is found lies in artifacts/<target>/: keep it as corpus/<target>/found-<name>, with a test of its own where the fault
# was. What fuzzing learns goes to .cache/fuzz/ of this checkout and is used again; corpus/ stays as it is.
set -euo pipefail

readonly CARGO_FUZZ=0.13.1
readonly MEMORY_MB=1024
readonly LONGEST_INPUT=8192
# No input takes as long, however busy the machine is.
readonly SECONDS_PER_INPUT=25

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache="$here/../../.cache"
mkdir -p "$cache/fuzz"
cache=$(cd "$cache" && pwd)
cd "$here"

if [ "${1:-}" = seeds ]; then
    exec cargo test --locked --workspace --manifest-path ../../Cargo.toml --test bytes -- --ignored --exact the_seeds_are_written_anew
fi
seconds=${1:-60}
case "$seconds" in
    '' | *[!0-9]*)
        echo "run.sh: \`$seconds\` is no number of seconds; see the head of this file" >&2
        exit 2
        ;;
esac

PATH="$cache/cargo-fuzz/bin:$PATH"
if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $CARGO_FUZZ" ]; then
    echo "run.sh: installing cargo-fuzz $CARGO_FUZZ into .cache"
    cargo install cargo-fuzz --version "=$CARGO_FUZZ" --locked --quiet --root "$cache/cargo-fuzz"
fi

sanitizer=${SANITIZER:-none}
[ "$sanitizer" = none ] || export RUSTC_BOOTSTRAP=1
target_dir=${CARGO_TARGET_DIR:-$here/target}
cargo fuzz build --fuzz-dir . --sanitizer "$sanitizer" --target-dir "$target_dir"
programs="$target_dir/$(rustc -vV | sed -n 's/^host: //p')/release"

failed=()
for target in ${TARGETS:-frame session control http}; do
    learnt="$cache/fuzz/$target"
    log="$cache/fuzz/$target.log"
    mkdir -p "$learnt" "artifacts/$target"
    status=0
    "$programs/$target" "$learnt" "corpus/$target" -max_total_time="$seconds" -rss_limit_mb="$MEMORY_MB" \
        -max_len="$LONGEST_INPUT" -timeout="$SECONDS_PER_INPUT" -print_final_stats=1 \
        -artifact_prefix="artifacts/$target/" >"$log" 2>&1 || status=$?
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    each=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    memory=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
    inputs=$(find "corpus/$target" "$learnt" -type f | wc -l)
    printf '%-8s %10s executions, %6s a second, %5s inputs, %4s MB at most\n' \
        "$target" "${executed:-?}" "${each:-?}" "$inputs" "${memory:-?}"
    if [ "$status" -ne 0 ]; then
        failed+=("$target")
        grep -v '^#' "$log" | tail -n 30 >&2
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "run.sh: found something in: ${failed[*]}; the inputs are in integration/fuzz/artifacts" >&2
    exit 1
fi
