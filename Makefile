# Every target creates the environment that it needs. It requires Python 3.9 or newer, and a C++ compiler if there is no
# prebuilt wheel of llama-cpp-python. LLAMA_CPP_INDEX=URL names the index of these wheels; LLAMA_CPP_INDEX= builds from
# source. A folder of `make wheelhouse` in or beside this one has priority: WHEELHOUSE=FOLDER names another,
# WHEELHOUSE= none. Without these, llama-cpp-python is installed for the GPU that is found: ACCEL=cpu for none.

PYTHON ?= python3
VENV := .venv
# By default make gives this variable the name of a program.
GET :=
BIN := $(VENV)/bin
OLD := localchat needs Python 3.9 or newer; name one that is installed: make PYTHON=python3.11 run
CHECKED := @$(PYTHON) -c 'import sys; sys.exit("$(OLD)" if sys.version_info < (3, 9) else 0)' && $(PYTHON)
CLIENT_TESTS := live/test_packages_live serving/api/test_ollama serving/api/test_program_requests mcp/test_conformance
# The conformance suite of MCP needs the node that is a package here, and servers of MCP are tested at these versions.
MCP_PACKAGES := @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22.23.3 \
	@modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31
INSTALL := $(CHECKED) -m tools.install $(VENV)

.PHONY: run gpu test check lint types bench soak client-tests program-tests formats wheelhouse install-tests clean

run: $(VENV)/$(if $(GET),hub,server).stamp  ## start the server; MODEL=file.gguf, or GET=PUBLISHER/REPOSITORY to fetch a model
	$(if $(GET),$(BIN)/python -m localchat.server --get $(GET))
	$(BIN)/python -m localchat.server $(or $(GET),$(MODEL)) $(ARGS)

gpu:  ## replace llama-cpp-python, for the GPU that is found; ACCEL=vulkan for another
	$(INSTALL) server --replace
	@touch $(VENV)/server.stamp

# After a native crash, pytest-xdist would start another process and wait for ever.
test: $(VENV)/test.stamp  ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal --max-worker-restart 0 $(ARGS)

check: lint types test  ## lint, types and tests: what CI runs

lint: $(VENV)/check.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/check.stamp
	$(BIN)/mypy

bench: $(VENV)/server.stamp  ## measure the server; URL=... measures others too
	$(BIN)/python -m bench.serve $(URL)

soak: $(VENV)/test.stamp  ## run the reliability programs, for some hours; ARGS="--n 1000" for less
	$(BIN)/python -m tests.soak all $(ARGS)

client-tests: $(VENV)/clients.stamp  ## test the server with openai, anthropic, litellm and ollama in Python, and in Node where npm installs them; the client with MCP servers
	-test -d $(VENV)/node_modules/node || npm install --no-audit --no-fund --prefix $(VENV) openai @anthropic-ai/sdk $(MCP_PACKAGES)
	NODE_PATH=$(CURDIR)/$(VENV)/node_modules $(BIN)/python -m pytest $(CLIENT_TESTS:%=tests/%.py) $(ARGS)

program-tests: $(VENV)/test.stamp  ## test the server with real programs from npm and PyPI; PROGRAMS="codex aider" for some
	$(BIN)/python -m tests.programs $(PROGRAMS) $(ARGS)

formats: $(VENV)/server.stamp  ## test whether templates and parsers agree; TEMPLATES="files or folders" for others
	$(BIN)/python -m tools.formats $(TEMPLATES)

EXTRAS ?= server,media
PYTHONS ?= $(PYTHON)
wheelhouse:  ## write a folder to install from without a network; MODEL=NAME EXTRAS=server,media,test ACCEL=cuda RPC=1 PYTHONS="python3.9 python3.12"
	$(CHECKED) -m tools.wheelhouse wheelhouse --extras '$(EXTRAS)' --accel '$(ACCEL)' --rpc '$(RPC)' --pythons '$(PYTHONS)' --model '$(MODEL)'

install-tests:  ## write a wheelhouse and install it without a network, without a compiler and so on; CASES="no_network ..."
	$(CHECKED) -m tests.install $(CASES)

clean:
	rm -rf $(VENV) .programs build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/server.stamp: pyproject.toml
	$(INSTALL) server,media
	@touch $@

$(VENV)/hub.stamp: $(VENV)/server.stamp
	$(INSTALL) server,media,hub
	@touch $@

$(VENV)/test.stamp: $(VENV)/server.stamp
	$(INSTALL) server,media,test
	@touch $@

$(VENV)/check.stamp: $(VENV)/test.stamp
	$(INSTALL) server,media,test,check
	@touch $@

$(VENV)/clients.stamp: $(VENV)/test.stamp
	$(INSTALL) server,media,test,clients
	@touch $@
