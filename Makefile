# make run: set everything up and do the main job. make test: set everything up and test it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test bench docs wheel mutants damaged odd-tables audit ends clean

run: $(VENV)/.installed
	$(BIN)/fedkin compare local fedavg perm --data rotated-digits

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20

bench: $(VENV)/.installed
	$(BIN)/python -m bench

# the site, in docs/_build/html; it runs the examples
docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# what strangers install: a wheel in an environment of its own
wheel: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

# faults planted in methods/, core/ and the run folder: do the tests notice?
mutants: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutants 60

# damaged and made-up run folders: does every command answer with a sentence?
damaged: $(VENV)/.installed-test
	$(BIN)/python -m tests.runs.damaged 2000

# odd tables through advise: an answer that can be true, or a sentence?
odd-tables: $(VENV)/.installed-test
	$(BIN)/python -m tests.runs.odd_tables 2000

# known holes in what we depend on, and our own code's; what is skipped is answered in bandit.yaml
audit: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit bandit
	$(BIN)/bandit --quiet --recursive --configfile bandit.yaml src
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# the ranges in pyproject.toml at both ends, each in an environment of its own
ends:
	for end in lowest newest; do \
	  $(PYTHON) -m venv $(VENV)-$$end && \
	  $(PYTHON) -m tests.ends $$end > $(VENV)-$$end/constraints.txt && \
	  $(VENV)-$$end/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c $(VENV)-$$end/constraints.txt -e . pytest pytest-xdist pytest-timeout hypothesis && \
	  $(VENV)-$$end/bin/python -m pytest -n 2 tests/core tests/data tests/methods || exit 1; \
	done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and from constraints.txt: the build named there needs no accelerator libraries
$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest runs docs/_build docs/examples .pytest_cache .mypy_cache .ruff_cache .hypothesis .reach.*
