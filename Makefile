# Two commands need no set-up: `make test` and `make demo`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: test lint demo bench clean

test: lint
	$(BIN)/python -m pytest

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

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
