# Two commands need no set-up: `make test` and `make demo`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The oldest that pyproject.toml allows, for `make test-oldest`.
TORCH ?= 2.6.0
NUMPY ?= 1.26.4
CORE := $(VENV)-torch-$(TORCH)

.PHONY: test test-fast test-core test-oldest coverage lint docs docs-serve dist demo bench clean

# On both cores, a file of tests to a process.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 15

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 -m "not slow"

# Of the library, by its fast tests.
coverage: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 -m "not slow" --cov --ignore tests/lab tests src/infobatch

test-oldest: test-core

# The library alone, with one torch and NumPy: `make test-core TORCH=2.8.0 NUMPY=2.2.6`.
test-core: $(CORE)/installed
	$(CORE)/bin/python -m pytest -n 2 tests --ignore tests/lab --ignore tests/integrations \
		--ignore tests/test_docs.py --ignore tests/test_site.py --ignore tests/test_benchmarks.py \
		--ignore tests/test_mixing.py --ignore tests/test_recipes.py --ignore tests/vision.py

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/installed
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/installed
	$(BIN)/mkdocs serve

# Wheel and sdist; the wheel is installed into an empty environment, where the README's loop runs.
dist: $(VENV)/installed
	rm -rf dist build/empty
	$(BIN)/python -m build
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && empty/bin/python ../tests/snippets.py

demo: $(VENV)/installed
	$(BIN)/infobatch demo

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

# constraints.txt pins every version, so that a new machine gets what the tests were run with.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(CORE)/installed: pyproject.toml
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/pip install --quiet "torch==$(TORCH)" "numpy==$(NUMPY)" "torchdata==0.11.0" \
		"pyarrow==19.0.1" pytest pytest-timeout pytest-xdist hypothesis
	$(CORE)/bin/pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-torch-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
