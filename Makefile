# Every target sets up .venv first if needed, and may be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test slow lint format bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "Installing PyTorch and the rest into $(VENV): some minutes, during which nothing is printed"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: setup
	@run=$$(mktemp -d)/run && published=$$(mktemp -d)/published && set -x && \
	$(BIN)/apportion train --dataset wisconsin --examples 560 --epsilon 2 --delta 1e-5 --batches 4 \
	  --schedule exponential --decay 0.02 --epochs 40 --out $$run && \
	$(BIN)/apportion publish $$run --to $$published && \
	$(BIN)/apportion verify $$published

test: lint
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/streaming.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
