# Plain `make` lists the targets. Every target makes what it needs, in folders that git ignores.
#   TORCH=2.11.0     another torch than the newest supported one, in an environment of its own
#   PYTHON=python3   this interpreter exactly as it is, without an environment
#   PATCHED=1        test with a torch that has the patches of patches/, in a throw-away copy of the environment
#   TORCH_SRC=...    the checkout or unpacked wheel to patch, instead of the environment's torch
#   ARGS=...         more arguments for pytest, for the demo or for the benchmark
#   DEVICE=sim       the benchmark without a GPU

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint test-gpu bench clean apply-patches revert-patches check-patches check-patches-all

TORCH ?=
DEVICE ?= cuda
VENV := .venv$(if $(TORCH),-$(TORCH))
REQUIREMENT := torch$(if $(TORCH),==$(TORCH),>=2.11,<2.16)

# Compiled code of tests and demo: in the checkout, so that a run neither reads nor leaves anything elsewhere.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.cache/inductor

# Only a PYTHON from the command line counts; one that happens to be in the environment does not.
ifeq ($(origin PYTHON),command line)
READY :=
READY_DEV :=
READY_BENCH :=
else
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
READY_BENCH := $(VENV)/.ready-bench
endif

# What runs the tests.
TEST_PYTHON := $(PYTHON)$(if $(filter-out 0,$(PATCHED)), scripts/run_patched.py)

# Patching a TORCH_SRC needs no environment, only a python3 (or the PYTHON of the command line).
ifdef TORCH_SRC
TARGET := "$(TORCH_SRC)"
PATCHER := $(if $(READY),python3,$(PYTHON))
READY_PATCH :=
else
PATCHER := $(PYTHON)
READY_PATCH := $(READY)
endif

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml
	scripts/make_venv.sh $(VENV) '$(REQUIREMENT)'
	@touch $@

$(VENV)/.ready-dev: pyproject.toml
	scripts/make_venv.sh $(VENV) '$(REQUIREMENT)' dev
	@touch $@ $(VENV)/.ready

$(VENV)/.ready-bench: pyproject.toml
	scripts/make_venv.sh $(VENV) '$(REQUIREMENT)' bench
	@touch $@ $(VENV)/.ready

demo: $(READY) ## Compile and run a transformer, check it against eager, show the table (simulated without a GPU).
	$(PYTHON) -m pygraph_inductor demo $(ARGS)

test: lint ## Lint, then every test that needs no GPU.
	CUDA_VISIBLE_DEVICES= $(TEST_PYTHON) -m pytest -n auto --maxprocesses 4 --dist loadfile --durations=10 $(ARGS)

lint: $(READY_DEV) ## Style, formatting and types.
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test-gpu: $(READY_DEV) ## The tests that need a GPU.
	$(TEST_PYTHON) -m pytest --durations=10 tests/gpu tests/cases $(ARGS)

bench: $(READY_BENCH) ## Measure every workload on the GPU, or with DEVICE=sim tiny ones on the simulated driver.
	$(PYTHON) -m scripts.bench run --device $(DEVICE) $(ARGS)

apply-patches: $(READY_PATCH) ## Make the environment's torch, or TORCH_SRC, call our hooks (docs/patches.md).
	$(PATCHER) scripts/apply_patches.py $(TARGET)

revert-patches: $(READY_PATCH) ## Take the patches out again, byte for byte.
	$(PATCHER) scripts/apply_patches.py --revert $(TARGET)

check-patches: $(READY_PATCH) ## Check that patches, hook definitions, seam table and the torch there agree.
	$(PATCHER) scripts/check_patches.py $(TARGET)

check-patches-all: $(READY) ## The same for every supported version, from its wheel (fetched once).
	$(PYTHON) scripts/check_patches.py --all

clean: ## Remove caches and build output; environments (.venv*) stay.
	rm -rf .cache build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find pygraph_inductor tests scripts -name __pycache__ -prune -exec rm -rf {} +
