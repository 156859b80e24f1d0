# make demo         the whole chain on the Maze task, offline, with a report at the end
# make test         all tests but those marked slow or gpu
# make check        formatting, lint, types
# make conformance  the server against OpenEnv's own client and validator, and against tools that guess
# make inspect      the tasks in Inspect, as `inspect eval lmrl/...` finds and plays them
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
FILES := setup.cfg pyproject.toml constraints.txt
CONFORMANCE := .venv-conformance
INSPECT := .venv-inspect

.PHONY: demo test check conformance inspect clean

demo: $(VENV)/.all
	$(BIN)/lmrl demo

test: $(VENV)/.dev
	$(BIN)/pytest -m "not slow and not gpu" -n 2

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy env_servers dataset_cards hub_datasets trainers eval_harness

conformance: $(CONFORMANCE)/.done
	$(CONFORMANCE)/bin/python tests/conformance/run.py

$(CONFORMANCE)/.done: $(FILES) $(wildcard tests/conformance/*.txt)
	$(PYTHON) -m venv $(CONFORMANCE)
	@echo "installing the package and OpenEnv into $(CONFORMANCE) (a few minutes the first time)"
	$(CONFORMANCE)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint tests/conformance/constraints.txt --requirement tests/conformance/requirements.txt \
		--editable '.[server,chess]'
	@touch $@

inspect: $(INSPECT)/.done
	$(INSPECT)/bin/python tests/inspect/run.py

$(INSPECT)/.done: $(FILES) $(wildcard tests/inspect/*.txt)
	$(PYTHON) -m venv $(INSPECT)
	@echo "installing the package and Inspect into $(INSPECT) (a minute the first time)"
	$(INSPECT)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint tests/inspect/constraints.txt --requirement tests/inspect/requirements.txt --editable '.[chess]'
	@touch $@

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
	rm -rf $(VENV) $(CONFORMANCE) $(INSPECT) build dist *.egg-info lmrl_demo runs .pytest_cache .mypy_cache .ruff_cache
