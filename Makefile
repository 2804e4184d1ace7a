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
.PHONY: help venv demo test test-all test-delta test-iceberg test-long lint types check docs bench soak proto lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

venv: $(STAMP)  ## the virtual environment with the project and its extras

COMPILED := laredo_fanout/decode/_row_scan.c laredo_fanout/catchup/_frames.c laredo_fanout/wire/_repeated.c \
	laredo_fanout/serving/_struct_rows.c laredo_archive/codec/structs/_struct_scan.c

# Whether pip itself has a newer version isn't asked.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

$(STAMP): pyproject.toml setup.py $(COMPILED)
	@$(PYTHON) -c '$(IS_NEW_ENOUGH)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

# The editable installations compile in one directory: one after the other.
$(ICEBERG_STAMP): $(DELTA_STAMP)
$(DELTA_STAMP) $(ICEBERG_STAMP): $(STAMP)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[$(@D:.venv-%=%),aws,embedded]' \
		httpx hypothesis 'moto[server]==5.2.5' pytest pytest-asyncio pytest-timeout pytest-xdist
	@touch $@

$(DEMO_STAMP): pyproject.toml setup.py $(COMPILED)
	@$(PYTHON) -c '$(IS_NEW_ENOUGH)'
	@$(PYTHON) examples/snapshotter/demo_install.py $(DEMO)
	@touch $(DEMO_STAMP)

demo: $(DEMO_STAMP)  ## rows change in a real PostgreSQL and land in an archive that is proven equal
	@$(DEMO)/bin/python -m examples.snapshotter.demo

# Half of a test's time it waits for other processes: three workers keep two cores busy.
PYTEST := -n 3 --dist loadfile --no-loadscope-reorder

test: export LAREDO_FUZZ_SECONDS ?= 1
test: export LAREDO_TEST_SECONDS ?= 8
test: $(STAMP)  ## before a push: fixed seeds and one PostgreSQL a test, with real PostgreSQL, S3 servers and Spark
	@tests/java.sh
	@tests/go.sh
	@tests/postgres15.sh
	$(BIN)/python -m pytest $(PYTEST) -m 'not thorough' --hypothesis-profile=push

test-all: $(STAMP) $(DELTA_STAMP) $(ICEBERG_STAMP)  ## what CI runs: more seeds, PostgreSQL 14 to 18, Delta Lake, Iceberg, the notebook, rehearsed alerts
	@tests/java.sh
	@tests/go.sh
	@tests/postgres15.sh
	@PYTHON=$(BIN)/python tests/postgres_14_17.sh
	@tests/prometheus.sh
	@tests/browser.sh
	$(BIN)/python -m pytest $(PYTEST)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-delta test-iceberg

# Side by side, each in a virtual environment and a temporary directory of its own: pytest's
# common one is tidied up by whichever run ends first.
OWN_TEMPORARY := own=$$(mktemp -d) && trap "rm -rf $$own" EXIT &&

test-delta: $(DELTA_STAMP)
	$(OWN_TEMPORARY) $(DELTA)/bin/python -m pytest -n 2 --dist loadfile --basetemp=$$own/t tests/spark/delta

test-iceberg: $(ICEBERG_STAMP)
	$(OWN_TEMPORARY) $(ICEBERG)/bin/python -m pytest --basetemp=$$own/t tests/spark/iceberg

test-long: export LAREDO_FUZZ_SECONDS ?= 60
test-long: export LAREDO_TEST_ALL = 1
test-long: test-all  ## the same, with a minute for each fuzz target and on more versions of PostgreSQL

lint: $(STAMP)  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict on the packages
	$(BIN)/mypy

check: lint types docs test-all  ## what CI runs

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
