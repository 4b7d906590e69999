# Every target makes the environment that it needs: nothing has to be installed by hand
# but Python (3.9 or newer), a C++ compiler and CMake.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The first build of llama-cpp-python takes some minutes; its output would hide everything else.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test check lint types bench formats clean

run: $(VENV)/server.stamp  ## start the server with the built-in model; MODEL=file.gguf for another
	$(BIN)/python -m localchat.server $(MODEL) $(ARGS)

test: $(VENV)/test.stamp  ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(ARGS)

check: lint types test  ## lint, types and tests: what CI runs

lint: $(VENV)/check.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/check.stamp
	$(BIN)/mypy

bench: $(VENV)/server.stamp  ## measure the server; URL=... measures others too
	$(BIN)/python -m bench.serve $(URL)

formats: $(VENV)/server.stamp  ## see whether templates and parsers agree; TEMPLATES="files or folders" for others
	$(BIN)/python -m tools.formats $(TEMPLATES)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/venv.stamp:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/server.stamp: $(VENV)/venv.stamp pyproject.toml
	@echo "Installing localchat and building llama-cpp-python: the first time takes some minutes."
	$(PIP) --editable '.[server]'
	touch $@

$(VENV)/test.stamp: $(VENV)/server.stamp
	$(PIP) --editable '.[server,test]'
	touch $@

$(VENV)/check.stamp: $(VENV)/test.stamp
	$(PIP) --editable '.[server,test,check]'
	touch $@
