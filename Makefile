# Plain `make` lists the targets. Every target makes what it needs, in folders that git ignores.
#   TORCH=2.11.0     another torch than the newest supported one, in an environment of its own
#   PYTHON=python3   this interpreter exactly as it is, without an environment
#   ARGS=...         more arguments for pytest, for the demo or for the benchmark
#   DEVICE=sim       the benchmark without a GPU

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint test-gpu bench clean

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

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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
	CUDA_VISIBLE_DEVICES= $(PYTHON) -m pytest -n auto --maxprocesses 4 --dist loadfile --durations=10 $(ARGS)

lint: $(READY_DEV) ## Style, formatting and types.
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

test-gpu: $(READY_DEV) ## The tests that need a GPU.
	$(PYTHON) -m pytest --durations=10 tests/gpu tests/cases $(ARGS)

bench: $(READY_BENCH) ## Measure every workload on the GPU, or with DEVICE=sim tiny ones on the simulated driver.
	$(PYTHON) -m scripts.bench run --device $(DEVICE) $(ARGS)

clean: ## Remove caches and build output; environments (.venv*) stay.
	rm -rf .cache build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find pygraph_inductor tests scripts -name __pycache__ -prune -exec rm -rf {} +
