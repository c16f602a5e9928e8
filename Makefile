# Targets for developers; .ci/run uses the same ones. You can set BACKEND, PORT, OPTIONS, ARGS and WORKERS.

VENV := .venv
BIN := $(VENV)/bin
# scripted, codex, or the URL of a real backend, such as http://127.0.0.1:11434/v1
BACKEND ?= scripted
# mitmdump, mitmweb or mitmproxy
MITM ?= mitmdump
# Model name in the printed commands; empty = the first model that BACKEND lists
MODEL ?=
PORT ?= 8080
# Additional options for mitmdump, such as OPTIONS="--set toolsim_backend=chat"
OPTIONS ?=
# Additional arguments for pytest, such as ARGS="-m 'not slow' -x"
ARGS ?=
# Which tests `make test` runs, as a pytest marker expression
MARKS ?= not extended and not ci
# Number of pytest workers. Tests spend half their time waiting, so five workers keep two cores busy
WORKERS ?= 5
# Durations of fuzzing and of the soak test, in seconds
FUZZ_S ?= 60
SECONDS ?= 60
# Number of concurrent streams in the soak test
STREAMS ?= 100
# Number of mutants per module
MUTANTS ?= 25

# Earlier names of targets, which keep working for one release.
RENAMED := quick mutants attack flows clients learn

.PHONY: help setup run web demo test test-ci compiled test-all test-unit test-lowest check test-clients test-clients-newest test-hostile faults fuzz soak coverage mutation bench replay \
	record-flows families releases docs eval tune $(RENAMED)
.DELETE_ON_ERROR:

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## */\1	/p' $(MAKEFILE_LIST) | expand -t 21

setup: $(VENV)/.everything $(VENV)/.clients  ## Install everything that tests and checks need

# The packages that the addon itself needs.
$(VENV)/.addon: pyproject.toml .python-version
	@set -e; \
	for python in python3 python3.13 python3.12 python3.14 "$$(uv python find '>=3.12' 2>/dev/null || true)"; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
			test -x $(BIN)/python || "$$python" -m venv $(VENV); \
			break; \
		fi; \
	done; \
	test -x $(BIN)/python || { echo "mitmproxy 12 needs Python 3.12 or newer; found none (try: pyenv install)"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

# What the unit tests need: no npm, no other clients, no BFCL.
$(VENV)/.test: $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.everything: $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,clients,check,eval,mcp,bfcl,local,docs]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps \
		bfcl-eval==2026.3.23 xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2
	@touch $@ $(VENV)/.test

# The JavaScript clients and Codex. Without npm, their tests are skipped.
$(VENV)/.clients: tests/clients/node/package-lock.json | $(VENV)/.addon
	@if command -v npm >/dev/null; then npm ci --silent --no-audit --no-fund --prefix tests/clients/node; \
	else echo "no npm: the tests of JavaScript clients will be skipped"; fi
	@touch $@

define ASK
curl -s http://127.0.0.1:$(PORT)/v1/responses -H 'content-type: application/json' -d '{
  "model": "any",
  "input": "What is the weather in Bonn?",
  "tools": [{"type": "function", "name": "get_weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]}'
endef

define ANSWER
curl -s http://127.0.0.1:$(PORT)/v1/responses -H 'content-type: application/json' -d '{
  "model": "any",
  "input": [
    {"role": "user", "content": "What is the weather in Bonn?"},
    {"type": "function_call", "call_id": "fc_001", "name": "get_weather", "arguments": "{\"city\": \"Bonn\"}"},
    {"type": "function_call_output", "call_id": "fc_001", "output": "18 degrees, light rain"}],
  "tools": [{"type": "function", "name": "get_weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]}'
endef

define WELCOME
Use http://127.0.0.1:$(PORT)/v1 as the base URL, with any key; /v1/models lists the models. Request a tool call:

$(ASK)

then send its output back:

$(ANSWER)

endef
export WELCOME

# The first listed model id that needs no quoting in the commands.
FIRST_MODEL := sed -nE 's/.*"id": *"([A-Za-z0-9_.:@+\/-]+)".*/\1/p' | head -n 1

run: $(VENV)/.addon  ## Serve BACKEND (scripted, codex or a URL) on 127.0.0.1:PORT
	@set -e; model='$(MODEL)'; case '$(BACKEND)' in \
	http://*|https://*) set -- --mode "reverse:$$(printf %s '$(BACKEND)' | sed -E 's,^(https?://[^/]+).*,\1,')" \
		--set 'toolsim_upstream=$(BACKEND)'; \
		for path in /models /v1/models; do \
			test -n "$$model" || model=$$(curl -s -m 5 '$(BACKEND)'"$$path" | tr '{' '\n' | $(FIRST_MODEL)); \
		done ;; \
	scripted|codex) set -- --set 'toolsim_backend=$(BACKEND)' ;; \
	*) echo "BACKEND: got '$(BACKEND)', expected scripted, codex or a URL; did you mean http://$(BACKEND)?"; exit 2 ;; \
	esac; \
	case '$(OPTIONS)' in *toolsim_store=*) ;; \
	*) set -- "$$@" --set "toolsim_store=sqlite:$${XDG_STATE_HOME:-$$HOME/.local/state}/toolsim/answers.sqlite" ;; esac; \
	$(BIN)/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT))).close()' 2>/dev/null \
		|| { echo "PORT: cannot listen on 127.0.0.1:$(PORT); is it in use? Try: make run PORT=$$(($(PORT) + 1))"; exit 2; }; \
	printf '%s\n' "$$WELCOME" | sed 's|"model": "any"|"model": "'"$${model:-any}"'"|'; \
	exec $(BIN)/$(MITM) -s addon/toolsim.py --listen-host 127.0.0.1 --listen-port $(PORT) "$$@" $(OPTIONS)

web: MITM := mitmweb
web: run  ## Same as run, but show the turns in a browser

demo: $(VENV)/.addon  ## Demo: one turn of each kind with the scripted model, then keep serving
	$(BIN)/toolsim demo --port $(PORT) $(OPTIONS)

# Distribute the tests by file, because each file starts its proxy or backend only once. Keep the order of conftest.py:
# pytest-xdist would begin with the files that have the most tests, which are the quickest. With many more workers than
# cores, time-dependent tests fail.
BY_FILE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: setup  ## Run the tests (WORKERS=0 to run them sequentially)
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest $(BY_FILE) -m '$(MARKS)' $(ARGS)

test-ci: MARKS := ci and not extended
test-ci: test  ## Run the other tests that CI runs: attacks, cuts, kills, malformed texts, and all documented commands

# Compiles the test modules once. Without it, each worker of the first run would compile all of them.
compiled: setup
	$(BIN)/python -m pytest --collect-only -qq > /dev/null

# Adds random examples, cuts at every position, tests of packages and images, and other slow tests.
test-all: setup  ## Run all tests
	$(BIN)/python -m pytest $(BY_FILE) $(ARGS)

# Uses all cores; for the edit-and-test cycle.
test-unit: $(VENV)/.test  ## Run the unit tests without I/O, in a minute or two
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q -n auto --dist worksteal -m 'not slow' \
		tests/unit tests/flows tests/test_architecture.py tests/test_readme.py $(ARGS)

# A separate environment with the lowest version of each direct dependency, on the oldest supported Python.
LOWEST := $(VENV)-lowest
$(LOWEST)/.done: pyproject.toml tests/support/lowest.py | $(VENV)/.test
	@set -e; for python in python3.12 "$$(uv python find 3.12 2>/dev/null || true)" "$$(pyenv prefix 3.12 2>/dev/null || true)/bin/python"; do \
		if "$$python" -c '' 2>/dev/null; then "$$python" -m venv $(LOWEST); break; fi; \
	done; \
	test -x $(LOWEST)/bin/python || { echo "make test-lowest needs Python 3.12 (try: pyenv install 3.12)"; exit 1; }
	$(BIN)/python tests/support/lowest.py 3.12 > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install -q --disable-pip-version-check -c $(LOWEST)/constraints.txt -e '.[test]'
	@touch $@

test-lowest: $(LOWEST)/.done  ## Run the unit tests and replay flows/ with the lowest declared versions, on Python 3.12
	$(LOWEST)/bin/toolsim replay flows
	HYPOTHESIS_PROFILE=quick $(LOWEST)/bin/python -m pytest -q -n auto --dist worksteal -m 'not slow' tests/unit $(ARGS)

# The agent programs (half a gigabyte). `npm ci` cannot install them: it rejects a lock file that lacks a package for
# another system.
$(VENV)/.agents: tests/clients/agents/package-lock.json | $(VENV)/.addon
	@if command -v npm >/dev/null; then npm install --no-save --silent --no-audit --no-fund --prefix tests/clients/agents; \
	else echo "no npm: the tests of agent programs will be skipped"; fi
	@touch $@

# A client that needs an older release of the OpenAI SDK than the other clients.
$(VENV)/.llama-index/.done: | $(VENV)/.addon
	$(BIN)/python -m venv $(VENV)/.llama-index
	$(VENV)/.llama-index/bin/python -m pip install -q --disable-pip-version-check \
		llama-index-core==0.14.25 llama-index-llms-openai==0.8.3
	@touch $@

# The newest releases of all clients, in a separate environment, so that the pinned releases stay installed.
NEWEST := $(VENV)/.newest
test-clients-newest: | $(VENV)/.addon  ## Run the tool loops of all real clients with their newest releases (npm, PyPI)
	test -x $(NEWEST)/bin/python || $(BIN)/python -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install -q --disable-pip-version-check -e '.[test,clients,mcp]'
	$(NEWEST)/bin/python -m pip install -q --disable-pip-version-check -U \
		openai anthropic openai-agents 'pydantic-ai-slim[openai]' langchain-openai fastapi uvicorn
	mkdir -p $(NEWEST)/node $(NEWEST)/agents
	cp tests/clients/node/*.mjs tests/clients/node/package.json $(NEWEST)/node
	cp tests/clients/agents/package.json $(NEWEST)/agents
	for folder in node agents; do (cd $(NEWEST)/$$folder && npm install --silent --no-audit --no-fund $$(node -p \
		'Object.keys(require("./package.json").dependencies).map(name => name + "@latest").join(" ")')) || exit 1; done
	TOOLSIM_TEST_CLIENTS=$(abspath $(NEWEST)) $(NEWEST)/bin/python -m pytest tests/clients $(ARGS)

test-clients: setup $(VENV)/.agents $(VENV)/.llama-index/.done  ## Run the tool loops of all real clients, including agent programs
	$(BIN)/python -m pytest tests/clients $(ARGS)

test-hostile: setup  ## Attack a real mitmdump; show answers, durations, memory and delays (ATTACK_DELAY=0.05 for a strict limit)
	$(BIN)/python -m pytest tests/attack $(ARGS)

faults: setup  ## Make every function that a turn calls fail once with each kind of exception; takes an hour (ARGS='"chat whole" KeyError' to run a part)
	cd tests && ../$(BIN)/python -m faults $(ARGS)

fuzz: setup  ## Fuzz the parsers for FUZZ_S seconds, and run the property tests longer (ARGS="-k sentinel" for one module)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fuzz]'
	cd tests && ../$(BIN)/python -m fuzz.parsers $(FUZZ_S)
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest tests/unit -m hypothesis $(ARGS)

soak: setup  ## Put a real mitmdump under load, with faults, for SECONDS, and report the counts (STREAMS=100 concurrent streams, HOSTILE=1 for a hostile client, HOSTILE="nested frames" for some of its attacks, SIZE=60000 for large requests next to it, SOCKETS=500 WebSocket connections, FRAMES=1 for floods of WebSocket frames)
	cd tests && ../$(BIN)/python -m soak $(SECONDS) --streams $(STREAMS) $(if $(HOSTILE),--hostile $(filter-out 1,$(HOSTILE))) $(if $(SIZE),--size $(SIZE)) $(if $(SOCKETS),--sockets $(SOCKETS)) $(if $(FRAMES),--frames)

# Tracing makes some tests too slow for their timeouts, so test failures are ignored here; `make test-all` reports them.
coverage: setup  ## Measure branch coverage, including programs that tests start (fails below 95%; ARGS="tests/unit" to run a part)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[coverage]'
	$(BIN)/coverage erase
	-HYPOTHESIS_PROFILE=quick $(BIN)/coverage run -m pytest $(BY_FILE) $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

mutation: setup  ## Mutate MUTANTS places in each module (MODULES="judge choice"), and show the mutants that no test detects
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mutants]'
	cd tests && ../$(BIN)/python -m mutants $(MUTANTS) $(or $(MODULES),$(ROOMS))

bench: setup  ## Measure speed and compare it with the goals (ROWS="cpu delay" for some groups, ROWS=peers for other proxies, QUICK=1 for a few minutes)
	cd tests && ../$(BIN)/python -m bench $(ROWS) $(if $(QUICK),--quick)

eval: setup  ## Run the evaluation scenarios offline (ARGS="--base-url URL --models NAME" for a real model)
	$(BIN)/toolsim eval $(or $(ARGS),--offline)

tune: setup  ## Test which settings suit a model of BACKEND, which must be a URL (MODEL=NAME, ARGS="--minutes 5")
	$(BIN)/toolsim tune '$(BACKEND)' $(if $(MODEL),--model '$(MODEL)') $(ARGS)

replay: $(VENV)/.addon  ## Replay flows/ and compare the results (UPDATE=1 to accept the differences)
	$(BIN)/toolsim replay $(if $(UPDATE),--update) flows

record-flows: setup  ## Re-record flows/ from real runs (ONLY=chat for recordings whose names contain that word)
	cd tests && ../$(BIN)/python -m flows.make $(ONLY)

releases: setup  ## Record the point at which the text of each test case is released
	cd tests && ../$(BIN)/python -m support.releases

families: setup  ## Generate the page about model families from the test cases, and raise the minimum rates that the tests require
	cd tests && ../$(BIN)/python -m support.families

# Sphinx builds the pages unchanged; it reads Markdown as GitHub does.
$(VENV)/.docs: | $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## Build the pages as a site in build/site, and check their links
	$(BIN)/python -m sphinx -q -n -W --keep-going -c addon/docs/website -d build/doctrees . build/site
	@echo "build/site/README.html"

# mypy checks the script separately, because the script has the same module name as the package, and one run of mypy
# would check only one of them.
check: $(VENV)/.everything  ## Check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy addon/toolsim.py

quick: test-unit
mutants: mutation
attack: test-hostile
flows: record-flows
clients: test-clients
learn: tune
$(RENAMED):
	@echo "make $@ is now called make $<" >&2
