# make demo   the whole chain on the Maze task, offline, with a report at the end
# make test   all tests but those marked slow or gpu
# make check  formatting, lint, types
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
FILES := setup.cfg pyproject.toml constraints.txt

.PHONY: demo test check clean

demo: $(VENV)/.all
	$(BIN)/lmrl demo

test: $(VENV)/.dev
	$(BIN)/pytest -m "not slow and not gpu" -n 2

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy env_servers dataset_cards hub_datasets trainers eval_harness

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.all: $(VENV)/bin/python $(FILES)
	@echo "installing the package into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python $(FILES)
	@echo "installing the package and what its tests need into $(VENV) (a few minutes the first time)"
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.all

clean:
	rm -rf $(VENV) build dist *.egg-info lmrl_demo runs .pytest_cache .mypy_cache .ruff_cache
