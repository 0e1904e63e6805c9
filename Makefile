# make run: set everything up and do the main job. make test: set everything up and test it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test bench docs wheel clean

run: $(VENV)/.installed
	$(BIN)/fedkin compare local fedavg perm --data rotated-digits --lr 0.1

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.installed
	$(BIN)/python -m bench

# the site, in docs/_build/html; it runs the examples
docs: $(VENV)/.installed-test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# what strangers install: a wheel in an environment of its own
wheel: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

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
	rm -rf $(VENV) runs docs/_build docs/examples .pytest_cache .mypy_cache .ruff_cache .hypothesis
