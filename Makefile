# Everything runs from .venv, which `make setup` creates: only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help setup check test test-full demo bench docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: .venv/.ready ## the virtual environment

check: setup ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## the default tests, under ten minutes
	$(BIN)/pytest -q -n auto -m "not full"

test-full: setup ## every test
	$(BIN)/pytest -q -n auto

demo: setup ## the devices, and an example kernel beside numpy
	$(BIN)/python -m softmetal devices
	$(BIN)/python -m softmetal run examples/saxpy.py

bench: setup ## the speed tables
	$(BIN)/python benchmarks/softmetal_speed.py
	$(BIN)/python benchmarks/lbrx_speed.py --peers

docs: setup ## regenerate the pages that come from the sources
	$(BIN)/python scripts/deviations.py > docs/deviations.md.new
	mv docs/deviations.md.new docs/deviations.md
	$(BIN)/python scripts/profiles_table.py
	$(BIN)/python scripts/fault_table.py
	$(BIN)/python scripts/quant_table.py

clean: ## remove what the targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
