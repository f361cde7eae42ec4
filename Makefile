# Two commands need no set-up: `make test` and `make demo`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OLDEST := $(VENV)-oldest

.PHONY: test test-fast test-oldest lint demo bench clean

# On both cores, a file of tests to a process.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 15

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 -m "not slow"

# The core with the oldest torch and NumPy that pyproject.toml allows.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python -m pytest -n 2 tests --ignore tests/lab \
		--ignore tests/integrations --ignore tests/test_docs.py --ignore tests/test_benchmarks.py

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

demo: $(VENV)/installed
	$(BIN)/infobatch demo

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

# constraints.txt pins every version, so that a new machine gets what the tests were run with.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(OLDEST)/installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet "torch==2.6.0" "numpy==1.26.4" "torchdata==0.11.0" \
		pytest pytest-xdist hypothesis
	$(OLDEST)/bin/pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis
