# Every target sets itself up from nothing but Python 3.11+ (PYTHON=... picks another).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Delta Lake needs an earlier PySpark than the one that all else is tested with.
DELTA := .venv-delta
DELTA_STAMP := $(DELTA)/.installed

.PHONY: help venv demo test test-all lint types check docs bench soak proto clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

venv: $(STAMP)  ## the virtual environment with the project and its extras

COMPILED := laredo_fanout/source/_row_scan.c laredo_fanout/catchup/_frames.c laredo_fanout/wire/_repeated.c

$(STAMP): pyproject.toml $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

$(DELTA_STAMP): $(STAMP)
	$(PYTHON) -m venv $(DELTA)
	$(DELTA)/bin/python -m pip install --quiet --upgrade pip
	$(DELTA)/bin/python -m pip install --quiet --editable '.[delta,aws,embedded]' \
		httpx hypothesis pytest pytest-asyncio pytest-timeout
	@touch $(DELTA_STAMP)

demo: $(STAMP)  ## rows change in a real PostgreSQL and land in an archive that is proven equal
	$(BIN)/python -m examples.snapshotter.demo

test: $(STAMP) $(DELTA_STAMP)  ## the whole test suite, against a real PostgreSQL, S3 servers and Spark
	@tests/java.sh
	@tests/postgres15.sh
	@PYTHON=$(BIN)/python tests/postgres_14_17.sh
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-all: export LAREDO_FUZZ_SECONDS ?= 60
test-all: export LAREDO_TEST_ALL = 1
test-all: test  ## the same, with a minute for each fuzz target and on more versions of PostgreSQL

lint: $(STAMP)  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict on the packages
	$(BIN)/mypy

check: lint types test  ## what CI runs

docs: $(STAMP)  ## the documentation, into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## each figure beside its limit, measured in the same run
	$(BIN)/python -m benchmarks

soak: $(STAMP)  ## upheavals of the source, faults, kills, rivals and hostile input by ever new seeds, for SECONDS=...; SEED=... KIND=... repeats one
	$(BIN)/python -m tests.end_to_end.soak $(if $(SEED),--seed $(SEED) --kind $(or $(KIND),upheaval),$(or $(SECONDS),600))

proto: $(STAMP)  ## generate the protobuf code anew
	$(BIN)/python -m proto.generate

clean:
	rm -rf $(VENV) $(DELTA) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
