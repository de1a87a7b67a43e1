PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check bench clean

demo: $(INSTALLED)  ## find the four rotations of real digits, beside the baselines, and write a report
	$(BIN)/python examples/demo.py

test: $(INSTALLED)  ## all tests and documentation examples
	$(BIN)/pytest

check: $(INSTALLED)  ## the full gate: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

bench: $(INSTALLED)  ## seconds per round against the plain loop, in one run
	$(BIN)/python benchmarks/rounds.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
