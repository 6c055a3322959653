# `make serve` and `make test` do all set-up by themselves and work again when run twice. `make help` lists the rest.

# Arguments for `innkeeper up`, e.g. make serve ARGS="--prefill 2 --decode 2"
ARGS ?=
# Cargo.lock is what was tested; `make build CARGO_FLAGS=` may change it.
CARGO_FLAGS ?= --locked

# What only tests need is in no program: a stand-in for the engines of others.
TESTED := --features innkeeper-remote/testing

# Where rustup puts cargo: on a fresh machine it is not on PATH yet.
CARGO_BIN := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin
export PATH := $(CARGO_BIN):$(PATH)
export ARGS

# The Python that the tests of the API use, with the clients of others in it; setup.sh makes it.
export INNKEEPER_TEST_PYTHON ?= $(CURDIR)/.cache/venv/bin/python

# For `set -o pipefail`.
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help serve test verify fuzz build lint bench bench-faults bench-front bench-overload bench-policies bench-tracing trace-demo \
        image cluster cluster-down e2e engines clean \
        setup-serve setup-test setup-image setup-cluster
# The steps of a goal are in order, whatever -j says.
.NOTPARALLEL:

help:
	@echo 'make serve   set up this machine, build, and run a cluster on it (ARGS="--prefill 2 --decode 2")'
	@echo 'make test    set up this machine, and run formatter, lints and all tests'
	@echo 'make verify  the deep checks, some two hours: planted bugs, two faults explored, thousands of seeds, fuzzing, soak, dependencies'
	@echo 'make fuzz    fuzz what parses bytes from outside (FUZZ_SECONDS=60 for each target)'
	@echo 'make build   build everything, optimised'
	@echo 'make lint    formatter and lints alone'
	@echo 'make bench   measure: the whole path, and the data plane against plain TCP'
	@echo 'make bench-faults  measure: each fault, what the client saw, seconds until it is over (BENCH_RUNS=20 of each)'
	@echo 'make bench-front  measure: CPU and latency of the front door beside a bare forwarder'
	@echo 'make bench-overload  measure: goodput, latencies and refusals from half of what fits to four times that'
	@echo 'make bench-tracing  measure: CPU of requests without spans, with none sampled, and with all traced'
	@echo 'make bench-policies  measure: what each policy saves of prompts, first tokens, and how evenly work is shared (BENCH_CHATS=96)'
	@echo 'make trace-demo  run a cluster and a Jaeger, and print the traces of requests that fare differently'
	@echo 'make image   write the image as an OCI archive, target/image/innkeeper-VERSION.tar'
	@echo 'make cluster  start a Kubernetes of two nodes on this machine (as root), and install the chart in it; make cluster-down ends it'
	@echo 'make e2e     the chart in such a Kubernetes: installed, upgraded, broken under load, behind gateways'
	@echo 'make engines  the scenarios in front of a real pair of engines on this machine, without a GPU (ENGINE=sglang: not vLLM)'
	@echo 'make clean   remove what was built and the Python of the tests; models that were fetched stay'

serve: setup-serve
	@exec cargo run $(CARGO_FLAGS) --release -p innkeeper --bin innkeeper -- up $(ARGS)

# The model is no step here: the program fetches it when it first needs it, and keeps it.
# Programs come before tests: the integration tests run them.
test: setup-test lint
	cargo build $(CARGO_FLAGS) --workspace --bins
	@mkdir -p .cache
	set -o pipefail; cargo test $(CARGO_FLAGS) --workspace $(TESTED) 2>&1 | tee .cache/test.log
	@echo 'make test: formatter, lints and all tests passed; all test programs together:'
	@awk '/^test result:/ { passed += $$4; failed += $$6 } /^SKIPPED:/ { skipped++ } \
	    END { printf "%d passed, %d failed, %d skipped (each says why, after SKIPPED:)\n", passed, failed, skipped }' .cache/test.log

# How much `make verify` does of each.
WORLD_RUNS ?= 20000
SIM_RUNS ?= 2000
FUZZ_SECONDS ?= 60
SOAK_SECONDS ?= 1800
BENCH_RUNS ?= 20

# What `make test` does in small, in depth; it says what it explored. Where a tool of fuzzing is missing it is installed.
verify: setup-test
	core/room/planted.sh
	cargo test $(CARGO_FLAGS) -p innkeeper-room --test world -- --ignored --nocapture --test-threads=2
	WORLD_RUNS=$(WORLD_RUNS) cargo test $(CARGO_FLAGS) -p innkeeper-room --test world -- --nocapture \
	    --exact one_fault three_faults in_silence_everybodys_own_timers_end_everything
	SIM_RUNS=$(SIM_RUNS) cargo test $(CARGO_FLAGS) --workspace --test simulation -- --nocapture
	cargo build $(CARGO_FLAGS) --workspace --bins
	INNKEEPER_VERIFY=1 cargo test $(CARGO_FLAGS) --workspace --test layers --test links --test etcd --test messages --test pages --test migration
	SOAK_SECONDS=$(SOAK_SECONDS) cargo test $(CARGO_FLAGS) --workspace --test soak -- --nocapture
	$(MAKE) fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)
	deploy/deny.sh

fuzz: setup-test
	integration/fuzz/run.sh $(FUZZ_SECONDS)

lint:
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace $(TESTED) --all-targets -- -D warnings
	@# The fuzzer is a workspace of its own: its lock file is to know what the crates depend on today.
	cargo metadata $(CARGO_FLAGS) --format-version 1 --manifest-path integration/fuzz/Cargo.toml >/dev/null

build:
	cargo build $(CARGO_FLAGS) --release --workspace --bins

bench: setup-serve
	cargo run $(CARGO_FLAGS) --release -p innkeeper --bin innkeeper -- bench
	cargo bench $(CARGO_FLAGS) -p innkeeper-transfer --bench data_plane

# What clients see of each fault, and how long it takes until nothing is left of the room: the table of docs/guarantee.md.
bench-faults: setup-test
	cargo build $(CARGO_FLAGS) --workspace --bins
	BENCH_RUNS=$(BENCH_RUNS) cargo test $(CARGO_FLAGS) --workspace --test bench_faults -- --ignored --nocapture

# What the front door costs beside a bare forwarder: the tables of docs/performance.md.
bench-front: setup-test
	cargo build $(CARGO_FLAGS) --release --workspace --bins
	cargo bench $(CARGO_FLAGS) --workspace --bench front_door

# What becomes of goodput past the knee: the table of docs/performance.md.
bench-overload: setup-test
	cargo build $(CARGO_FLAGS) --release --workspace --bins
	cargo bench $(CARGO_FLAGS) --workspace --bench overload

# What spans cost in CPU: the table of docs/performance.md.
bench-tracing: setup-test
	cargo build $(CARGO_FLAGS) --release --workspace --bins
	cargo bench $(CARGO_FLAGS) --workspace --bench tracing

# What each policy makes of the prefix cache, beside the tables of docs/performance.md.
bench-policies: setup-test
	cargo build $(CARGO_FLAGS) --release --workspace --bins
	cargo bench $(CARGO_FLAGS) --workspace --bench policies

# Six requests: healthy, its connection broken, its room evicted, aborted, retried, migrated.
trace-demo: setup-test
	cargo build $(CARGO_FLAGS) --workspace --bins
	cargo test $(CARGO_FLAGS) --workspace --test traces -- --ignored --nocapture --exact demo

# PROGRAMS=target/release takes the program that is there; otherwise it is built.
PROGRAMS ?=
image: setup-image
	@deploy/image.py build $(if $(PROGRAMS),--programs $(PROGRAMS))

# What a crash has left of a cluster is removed by `make cluster-down`.
cluster: setup-cluster image
	integration/kubernetes/build.sh
	integration/kubernetes/cluster.sh up 2
	integration/kubernetes/e2e.py install
	@echo 'integration/kubernetes/cluster.sh kubectl --namespace innkeeper get pods'
	@echo 'integration/kubernetes/cluster.sh helm --namespace innkeeper test innkeeper --logs'
	@echo 'make cluster-down ends it'

cluster-down:
	integration/kubernetes/cluster.sh down

# Under a quarter of an hour once all is built; what has to be built takes most of an hour on two cores.
e2e: setup-cluster setup-image
	@PROGRAMS=$(PROGRAMS) integration/kubernetes/whole.sh

# What is installed stays in the cache directory; a quarter of an hour on two cores once it is there.
ENGINE ?= vllm
engines: setup-test
	cargo build $(CARGO_FLAGS) --workspace --bins
	cargo test $(CARGO_FLAGS) --workspace $(TESTED) --test engine_pair --no-run
	integration/engines/run.sh $(ENGINE) \
	    cargo test $(CARGO_FLAGS) --workspace $(TESTED) --test engine_pair -- --nocapture --test-threads=1

clean:
	cargo clean
	rm -rf .cache/venv

setup-serve:
	@deploy/setup.sh serve

setup-test:
	@deploy/setup.sh test

setup-image:
	@deploy/setup.sh image

setup-cluster:
	@deploy/setup.sh cluster
