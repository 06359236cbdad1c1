# Everything runs in .venv, which `make setup` builds from python3 and constraints.txt alone.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Versions come from constraints.txt: an unpinned torch would pull gigabytes.
PIP_INSTALL := $(RUN) -m pip install --quiet --constraint constraints.txt
READY := $(VENV)/.ready
READY_BENCH := $(VENV)/.ready-bench
READY_SLOW := $(VENV)/.ready-slow
READY_BROWSER := $(VENV)/.ready-browser

.PHONY: help setup demo test tests test-slow mutations check bench docs dist clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Build .venv with what tests and demo need (once)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable '.[cli,plots,data,hf,docs,dev]'
	@touch $@

$(READY_BENCH): $(READY)
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@

$(READY_SLOW): $(READY)
	$(PIP_INSTALL) --editable '.[slow]'
	@touch $@

# One test opens report pages in a real browser; without one it says that it was skipped.
$(READY_BROWSER): $(READY)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then \
		echo "installing chromium for the test of report pages"; \
		{ timeout 900 apt-get update -q && timeout 900 apt-get install -yq --no-install-recommends chromium; } \
			>/dev/null 2>&1 || echo "no chromium to be had: that test will be skipped"; \
	fi
	@touch $@

demo: setup  ## Train with DP-PSAC on Fashion-MNIST beside DP-SGD and Auto-S, and make a report page
	$(RUN) -m psac demo

# Threads that spin while they wait make tests five times as slow where the cores are busy.
tests test-slow mutations check: export OMP_WAIT_POLICY = passive

test: check tests  ## What must pass before a commit: check, then tests

check: setup  ## Lint, format, types, doctests
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath $(RUN)
	$(RUN) -m pytest -q --doctest-modules psac

# A process for each core, one thread in each: most tensors are too small to share.
tests: export OMP_NUM_THREADS = 1
tests: setup $(READY_BROWSER)  ## The tests alone
	$(RUN) -m pytest -q -n auto --maxprocesses 4 --dist loadfile

test-slow: $(READY_SLOW)  ## Run the tests marked slow, and look for new counter-examples
	PSAC_EXPLORE=1 $(RUN) -m pytest -q -m 'slow or hypothesis'

mutations: setup  ## Break the library in many ways and see that tests catch each
	$(RUN) -m tests.mutations

bench: $(READY_BENCH)  ## Measure against ordinary training, Opacus and vmap
	$(RUN) -m benchmarks
	$(RUN) examples/check_a_model.py --page

docs: setup  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

dist: setup  ## Build the sdist and the wheel into dist/
	$(RUN) -m build

clean:  ## Remove .venv, caches and build products
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
