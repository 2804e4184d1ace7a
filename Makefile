# Every target sets itself up from nothing but Python 3.11+ (PYTHON=... picks another).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Delta Lake and Iceberg each need an earlier PySpark than the one that all else is tested with.
DELTA := .venv-delta
DELTA_STAMP := $(DELTA)/.installed
ICEBERG := .venv-iceberg
ICEBERG_STAMP := $(ICEBERG)/.installed
# What the demo needs and no more.
DEMO := .venv-demo
DEMO_STAMP := $(DEMO)/.installed
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")

LOCK := build/lock
.PHONY: help venv demo test test-all test-thorough test-lakehouses test-delta test-iceberg test-long lint types check docs bench soak proto lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

venv: $(STAMP)  ## the virtual environment with the project and its extras

COMPILED := $(wildcard laredo_*/*/_*.[ch])

# Whether pip itself has a newer version isn't asked.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what it imports; most of what is installed is never imported.
INSTALL := -m pip install --quiet --no-compile

$(STAMP): pyproject.toml setup.py $(COMPILED)
	@$(PYTHON) -c '$(IS_NEW_ENOUGH)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $(STAMP)

# A PySpark of its own; all else is the common environment's.
REQUIRED := import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*(each for each in extras[sys.argv[1]] if not each.startswith("laredo-")))
COMMON := import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))
$(DELTA_STAMP) $(ICEBERG_STAMP): $(STAMP)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) $$($(BIN)/python -c '$(REQUIRED)' $(@D:.venv-%=%))
	$(BIN)/python -c '$(COMMON)' > $$(echo $(@D)/lib/python*/site-packages)/common.pth
	@ln -s $(abspath $(BIN))/* $(@D)/bin/ 2> /dev/null || true
	@touch $@

$(DEMO_STAMP): pyproject.toml setup.py $(COMPILED)
	@$(PYTHON) -c '$(IS_NEW_ENOUGH)'
	@$(PYTHON) examples/snapshotter/demo_install.py $(DEMO)
	@touch $(DEMO_STAMP)

demo: $(DEMO_STAMP)  ## rows change in a real PostgreSQL and land in an archive that is proven equal
	@$(DEMO)/bin/python -m examples.snapshotter.demo

# Half of a test's time it waits for other processes: four workers keep two cores busy.
PYTEST := -n 4 --dist loadfile --no-loadscope-reorder

test: export LAREDO_FUZZ_SECONDS ?= 1
test: $(STAMP)  ## before a push, and in CI: each rule once, with real PostgreSQL, S3 servers and Spark
	@tests/java.sh
	@tests/postgres15.sh
	$(BIN)/python -m pytest $(PYTEST) -m 'not thorough' --hypothesis-profile=push

test-all: $(STAMP) $(DELTA_STAMP) $(ICEBERG_STAMP) tools  ## all tests: more seeds, PostgreSQL 14 to 18, Delta Lake, Iceberg, the notebook, rehearsed alerts
	$(BIN)/python -m pytest $(PYTEST)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-delta test-iceberg

# The commit that a change is compared with.
SINCE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~1)

test-thorough: $(STAMP) tools  ## what `make test` leaves out; CHANGED=1: of what differs from SINCE=... (origin/main), and of what imports it
	$(BIN)/python -m pytest $(PYTEST) -m thorough $(if $(CHANGED),--changed-since $(SINCE))

.PHONY: tools
tools: $(STAMP)
	@tests/java.sh
	@tests/go.sh
	@tests/postgres15.sh
	@PYTHON=$(BIN)/python tests/postgres_14_17.sh
	@tests/prometheus.sh
	@tests/browser.sh

test-lakehouses: export LAKEHOUSE := -k 'at_each_boundary and not rest and not bucket'
test-lakehouses: $(DELTA_STAMP) $(ICEBERG_STAMP)  ## one archive kept as a Delta table, and one as an Iceberg table
	@tests/java.sh
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-delta test-iceberg

# Side by side, each in a virtual environment and a temporary directory of its own: pytest's
# common one is tidied up by whichever run ends first.
test-delta test-iceberg: test-%: .venv-%/.installed
	own=$$(mktemp -d) && trap "rm -rf $$own" EXIT && .venv-$*/bin/python -m pytest --basetemp=$$own/t tests/spark/$* $(LAKEHOUSE)

test-long: export LAREDO_FUZZ_SECONDS ?= 60
test-long: export LAREDO_TEST_ALL = 1
test-long: test-all  ## the same, with a minute for each fuzz target and on more versions of PostgreSQL

lint: $(STAMP)  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict on the packages
	$(BIN)/mypy

check: $(STAMP)  ## what CI runs: lint, types and docs, then the tests and the two lakehouses
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types docs $(DELTA_STAMP) $(ICEBERG_STAMP)
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-lakehouses

docs: $(STAMP)  ## the documentation, into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## each figure beside its limit, measured in the same run
	$(BIN)/python -m benchmarks

soak: $(STAMP)  ## upheavals of the source, faults, kills, rivals and hostile input by ever new seeds, for SECONDS=...; SEED=... KIND=... repeats one
	$(BIN)/python -m tests.end_to_end.soak $(if $(SEED),--seed $(SEED) --kind $(or $(KIND),upheaval),$(or $(SECONDS),600))

proto: $(STAMP)  ## generate the protobuf code again
	$(BIN)/python -m proto.generate

lock:  ## what the image installs, to the version and hash, into requirements.lock; with the image's Python
	$(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND="make lock" $(LOCK)/bin/pip-compile --quiet --upgrade --allow-unsafe --strip-extras \
		--extra aws --extra parquet --generate-hashes --no-emit-find-links --no-emit-index-url \
		--output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) $(DELTA) $(ICEBERG) $(DEMO) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
