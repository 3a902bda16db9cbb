# The entry points of Farhold. `make demo` runs the demonstration, `make test` runs every check.
# Each target installs what a fresh Debian 12 machine lacks.

CARGO := PATH="$$HOME/.cargo/bin:$$PATH" cargo
# The CPU for which `make release` builds: any x86 server of the last ten years. On an older CPU the program reports this.
TARGET_CPU ?= $(if $(filter x86_64,$(shell uname -m)),x86-64-v3)

.PHONY: help demo test lint miri-full threads gpu-kernels gpu-suite models network-suite kills clients fuzz starved release figures clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: ## Three nodes on this machine: TPC-C and SQL over the same rows (KILL=1: kills one of them; ARGS="--warehouses 9 --seconds 30")
	@scripts/install-deps build
	$(CARGO) build -p farhold --bin farhold
	$(or $(CARGO_TARGET_DIR),target)/debug/farhold demo $(if $(KILL),--kill) $(ARGS)

test: ## Every check
	@scripts/install-deps test
	@scripts/run-checks

lint: ## Formatting, clippy, licences, layers
	@scripts/install-deps test
	@scripts/run-checks lint

miri-full: ## Every test that Miri can run (an hour; `make test` runs those that race)
	@scripts/install-deps test
	scripts/check-miri full

threads: ## Three hundred clusters of real threads that stop in the middle of their sections (some minutes; SEEDS=1000; `make test` runs a few)
	@scripts/install-deps build
	$(CARGO) run --release -p farhold-sim -- threads --seeds $(or $(SEEDS),300)

gpu-kernels: ## Compiles the GPU kernels for sm_80 and sm_90 without register spills (downloads nvcc, half a gigabyte)
	@scripts/install-deps build
	scripts/gpu-kernels

gpu-suite: ## Builds, checks and measures the GPU joins (needs a GPU; see docs/guide/gpu.md)
	@scripts/install-deps build
	scripts/gpu-suite

models: ## The models of concurrent protocols (models/), every state of each, with Spin
	@scripts/install-deps models
	scripts/check-models

network-suite: ## Three hosts (network namespaces) with replicas and an etcd: TPC-C and SQL over TCP, links cut and hosts killed (needs root; ten minutes)
	@scripts/install-deps test
	scripts/cargo-all build --bin farhold
	scripts/network-tests --long

kills: ## A hundred kills of nodes under SmallBank, and thirty with journals, some of all nodes at once: nothing acknowledged may be lost; then all variants of the tests of whole clusters (half an hour)
	@scripts/install-deps test
	$(CARGO) build -p farhold --bin farhold
	.tools/python/bin/python scripts/kill-tests
	.tools/python/bin/python scripts/kill-tests --kills 30 --journal
	.tools/python/bin/python scripts/e2e-tests --long demo tpcc

clients: ## psql, psycopg, asyncpg and JDBC against a running server
	@scripts/install-deps test
	@scripts/run-checks clients

fuzz: ## Random statements in Farhold and in PostgreSQL (QUERIES=100000 SEED=2 PROCESSES=4; another seed gives other statements)
	@scripts/install-deps test
	$(CARGO) build -p farhold --bin farhold
	.tools/python/bin/python scripts/fuzz-postgres --queries $(or $(QUERIES),100000) --seed $(or $(SEED),2) --processes $(or $(PROCESSES),$(shell nproc))

starved: ## Every test of the crates and of whole clusters on a third of one processor (two hours; needs root)
	@scripts/install-deps test
	scripts/run-checks build
	rm -rf target/passed
	scripts/starve scripts/run-checks tests e2e

release: ## The optimised binary, target/shipped/farhold, for processors with AVX2 (TARGET_CPU=x86-64 for older ones; half an hour on 4 cores)
	@scripts/install-deps build
	RUSTFLAGS="$(if $(TARGET_CPU),-C target-cpu=$(TARGET_CPU))" $(CARGO) build --profile shipped -p farhold --bin farhold

figures: ## Measures this machine and rewrites figures/ (release build; see docs/guide/figures.md)
	@scripts/install-deps test
	scripts/figures

clean: ## Removes what was built
	$(CARGO) clean
	rm -rf .tools
