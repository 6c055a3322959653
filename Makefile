# `make serve` and `make test` do all set-up by themselves and work again when run twice. `make help` lists the rest.

# Arguments for `innkeeper up`, e.g. make serve ARGS="--prefill 2 --decode 2"
ARGS ?=
# Cargo.lock is what was tested; `make build CARGO_FLAGS=` may change it.
CARGO_FLAGS ?= --locked

# Where rustup puts cargo: on a fresh machine it is not on PATH yet.
CARGO_BIN := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin
export PATH := $(CARGO_BIN):$(PATH)
export ARGS

# The Python that the tests of the API use, with OpenAI's client in it; setup.sh makes it.
export INNKEEPER_TEST_PYTHON ?= $(CURDIR)/.cache/venv/bin/python

# For `set -o pipefail`.
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help serve test build lint bench clean setup-serve setup-test
# The steps of a goal are in order, whatever -j says.
.NOTPARALLEL:

help:
	@echo 'make serve   set up this machine, build, and run a cluster on it (ARGS="--prefill 2 --decode 2")'
	@echo 'make test    set up this machine, and run formatter, lints and all tests'
	@echo 'make build   build everything, optimised'
	@echo 'make lint    formatter and lints alone'
	@echo 'make bench   measure: the whole path, and the data plane against plain TCP'
	@echo 'make clean   remove what was built and the Python of the tests; models that were fetched stay'

serve: setup-serve
	@exec cargo run $(CARGO_FLAGS) --release -p innkeeper --bin innkeeper -- up $(ARGS)

# The model is no step here: the program fetches it when it first needs it, and keeps it.
# Programs come before tests: the integration tests run them.
test: setup-test lint
	cargo build $(CARGO_FLAGS) --workspace --bins
	@mkdir -p .cache
	set -o pipefail; cargo test $(CARGO_FLAGS) --workspace 2>&1 | tee .cache/test.log
	@echo 'make test: formatter, lints and all tests passed; all test programs together:'
	@awk '/^test result:/ { passed += $$4; failed += $$6 } END { printf "%d passed, %d failed\n", passed, failed }' .cache/test.log

lint:
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

build:
	cargo build $(CARGO_FLAGS) --release --workspace --bins

bench: setup-serve
	cargo run $(CARGO_FLAGS) --release -p innkeeper --bin innkeeper -- bench
	cargo bench $(CARGO_FLAGS) -p innkeeper-transfer --bench data_plane

clean:
	cargo clean
	rm -rf .cache/venv

setup-serve:
	@deploy/setup.sh serve

setup-test:
	@deploy/setup.sh test
