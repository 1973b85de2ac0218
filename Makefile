# Each of these sets up what it needs: `make sweep`, `make test` and `make lint` work on a bare machine with Python 3.11+.

PYTHON ?= python3
VENV := .venv
JOBS ?= auto
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: sweep test chaos lint compat compile-all setup clean

sweep: $(READY)
	$(BIN)/tunefarm sweep experiments/softmax.yaml

# Tests mostly wait for processes that they start, so several files go on at a time; what needs a GPU goes alone.
test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --ignore tests/gpu
	$(BIN)/python -m pytest tests/gpu

# Sweeps on a Ray cluster of this machine while nodes, workers, drivers and MLflow die: one a seed, half an hour for 20.
chaos: $(READY)
	$(BIN)/python tests/chaos.py --seeds $(or $(SEEDS),20)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lookups under each Triton from 3.6 to 3.9, fetched for that (some 900 MB); what cannot be fetched is left out.
compat: $(READY)
	$(BIN)/python tests/compat/versions.py

# Every candidate of every experiment, for every arch it names, on all CPUs; ONLY="softmax rms_norm" for a few.
compile-all: $(READY)
	$(BIN)/python experiments/benchmarks/compile_all.py $(if $(ONLY),--only $(ONLY))

setup: $(READY)

# The stamp is made last, so an installation that was cut short is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tunefarm needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints.txt
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
