PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check numbers faults bench clean

demo: $(INSTALLED)  ## find the four rotations of real digits, beside the baselines, and write a report
	$(BIN)/python examples/demo.py

# A process for each core, with one thread: threads of two would stand in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

test: $(INSTALLED)  ## all tests and documentation examples
	$(PYTEST)

check: $(INSTALLED)  ## the full gate: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

numbers: $(INSTALLED)  ## run the commands whose accuracies the pages give, and compare
	$(PYTEST) -m "" tests/test_numbers.py

faults: $(INSTALLED)  ## the whole fault suite: kills, full disks, damage, malformed input, hostile and killed nodes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults

PEERS := $(patsubst benchmarks/requirements/%.txt,%,$(wildcard benchmarks/requirements/*.txt))

bench: $(INSTALLED) $(PEERS:%=benchmarks/.venv/%/.installed)  ## speed and memory against peers
	$(BIN)/coterie data get mnist
	$(BIN)/python benchmarks/rounds.py --write

# Each peer has an environment of its own; one that cannot be installed is left out of the tables.
benchmarks/.venv/%/.installed: benchmarks/requirements/%.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --requirement $< || rm -rf $(@D)
	mkdir -p $(@D) && touch $@

clean:
	rm -rf $(VENV) benchmarks/.venv .mypy_cache .pytest_cache .ruff_cache

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@
