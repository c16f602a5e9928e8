# Targets for people; .ci/run calls the same ones. Set BACKEND, PORT, OPTIONS, ARGS and WORKERS as you like.

VENV := .venv
BIN := $(VENV)/bin
# scripted, codex, or the URL of a real backend, such as http://127.0.0.1:11434/v1
BACKEND ?= scripted
# mitmdump, mitmweb or mitmproxy
MITM ?= mitmdump
# The model in the printed commands; empty = the first one of BACKEND
MODEL ?=
PORT ?= 8080
# More options for mitmdump, such as OPTIONS="--set toolsim_backend=chat"
OPTIONS ?=
# More arguments for pytest, such as ARGS="-m 'not slow' -x"
ARGS ?=
# The number of pytest workers; half of their time is waiting, so five keep two cores busy
WORKERS ?= 5
# The durations of fuzzing and of the soak
FUZZ_S ?= 60
SECONDS ?= 60
STREAMS ?= 100
# Per module
MUTANTS ?= 25

# Earlier names of targets, which keep working for one release.
RENAMED := quick mutants attack flows clients learn

.PHONY: help setup run web demo test test-all test-unit test-lowest check test-clients test-clients-newest test-hostile faults fuzz soak coverage mutation bench replay \
	record-flows families releases docs eval tune $(RENAMED)
.DELETE_ON_ERROR:

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## */\1	/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(VENV)/.everything $(VENV)/.clients  ## Install everything that tests and checks need

# Only what the addon itself needs to run.
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

# What the tests of the pure part need: no npm, no other clients, no BFCL.
$(VENV)/.test: $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.everything: $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,clients,check,eval,mcp,bfcl,local,docs]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps \
		bfcl-eval==2026.3.23 xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2
	@touch $@ $(VENV)/.test

# The JavaScript clients and Codex; without npm their tests are skipped.
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
Clients use http://127.0.0.1:$(PORT)/v1 as base URL, with any key; it lists its models at /v1/models. Ask for a call:

$(ASK)

and give its output back:

$(ANSWER)

endef
export WELCOME

# The first model id in a list that needs no quoting in the commands.
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
		|| { echo "PORT: cannot listen on 127.0.0.1:$(PORT); is it taken? Another one: make run PORT=$$(($(PORT) + 1))"; exit 2; }; \
	printf '%s\n' "$$WELCOME" | sed 's|"model": "any"|"model": "'"$${model:-any}"'"|'; \
	exec $(BIN)/$(MITM) -s addon/toolsim.py --listen-host 127.0.0.1 --listen-port $(PORT) "$$@" $(OPTIONS)

web: MITM := mitmweb
web: run  ## The same, with its turns shown in a browser

demo: $(VENV)/.addon  ## Demo: one turn of each kind with the scripted model, then keep serving
	$(BIN)/toolsim demo --port $(PORT) $(OPTIONS)

# By file: a file starts its proxy or backend only once. In the order of conftest.py: pytest-xdist would begin with the
# files of most tests, which are the quickest. Many more workers than cores break tests that depend on time.
BY_FILE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: setup  ## Run the tests (WORKERS=0 for one after the other)
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest $(BY_FILE) -m 'not extended' $(ARGS)

# With more examples, a cut at every place, packages and images, and what only costs time.
test-all: setup  ## Run all tests
	$(BIN)/python -m pytest $(BY_FILE) $(ARGS)

# On all cores: the inner loop of development.
test-unit: $(VENV)/.test  ## Run the unit tests without I/O, in a minute or two
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q -n auto --dist worksteal -m 'not slow' \
		tests/unit tests/flows tests/test_architecture.py tests/test_readme.py $(ARGS)

# A separate environment: the lowest version of each direct dependency, on the oldest supported Python.
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

# Agent programs, half a gigabyte. Not `npm ci`: it rejects a lock file that lacks a package for another system.
$(VENV)/.agents: tests/clients/agents/package-lock.json | $(VENV)/.addon
	@if command -v npm >/dev/null; then npm install --no-save --silent --no-audit --no-fund --prefix tests/clients/agents; \
	else echo "no npm: the tests of agent programs will be skipped"; fi
	@touch $@

# A client that needs an older release of the OpenAI SDK than the others.
$(VENV)/.llama-index/.done: | $(VENV)/.addon
	$(BIN)/python -m venv $(VENV)/.llama-index
	$(VENV)/.llama-index/bin/python -m pip install -q --disable-pip-version-check \
		llama-index-core==0.14.25 llama-index-llms-openai==0.8.3
	@touch $@

# The newest releases of all clients, in an environment of their own: the pinned ones stay as they are.
NEWEST := $(VENV)/.newest
test-clients-newest: | $(VENV)/.addon  ## Run the loops of all real clients in their newest releases (npm, PyPI)
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

test-clients: setup $(VENV)/.agents $(VENV)/.llama-index/.done  ## Run the loops of all real clients, including agent programs
	$(BIN)/python -m pytest tests/clients $(ARGS)

test-hostile: setup  ## Attack a real mitmdump; show answers, seconds, memory and delays (ATTACK_DELAY=0.05 to be strict)
	$(BIN)/python -m pytest tests/attack $(ARGS)

faults: setup  ## Let every function that a turn enters fail once, with each kind of exception; takes an hour (ARGS='"chat whole" KeyError' for a part)
	cd tests && ../$(BIN)/python -m faults $(ARGS)

fuzz: setup  ## Fuzz the parsers for FUZZ_S seconds, and run the property tests longer (ARGS="-k sentinel" for one module)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fuzz]'
	cd tests && ../$(BIN)/python -m fuzz.parsers $(FUZZ_S)
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest tests/unit -m hypothesis $(ARGS)

soak: setup  ## Load a real mitmdump with faults for SECONDS, and count (STREAMS=100 at once, HOSTILE=1 for a hostile client, HOSTILE="nested frames" for some of its attacks, SIZE=60000 for large requests next to it, SOCKETS=500 WebSocket connections, FRAMES=1 for floods of WebSocket frames)
	cd tests && ../$(BIN)/python -m soak $(SECONDS) --streams $(STREAMS) $(if $(HOSTILE),--hostile $(filter-out 1,$(HOSTILE))) $(if $(SIZE),--size $(SIZE)) $(if $(SOCKETS),--sockets $(SOCKETS)) $(if $(FRAMES),--frames)

# Tracing makes some tests too slow for their timeouts, so failures are ignored here: `make test-all` reports them.
coverage: setup  ## Measure branch coverage, in started programs too (fails below 95 %; ARGS="tests/unit" for a part)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[coverage]'
	$(BIN)/coverage erase
	-HYPOTHESIS_PROFILE=quick $(BIN)/coverage run -m pytest $(BY_FILE) $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

mutation: setup  ## Mutate MUTANTS places of each module (MODULES="judge choice"), and show the mutants that no test detects
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[mutants]'
	cd tests && ../$(BIN)/python -m mutants $(MUTANTS) $(or $(MODULES),$(ROOMS))

bench: setup  ## Measure speed against goals (ROWS="cpu delay" for some groups, ROWS=peers for other proxies, QUICK=1 for a few minutes)
	cd tests && ../$(BIN)/python -m bench $(ROWS) $(if $(QUICK),--quick)

eval: setup  ## Measure the scenarios offline (ARGS="--base-url URL --models NAME" for a real model)
	$(BIN)/toolsim eval $(or $(ARGS),--offline)

tune: setup  ## Test which settings suit the model of BACKEND, a URL (MODEL=NAME, ARGS="--minutes 5")
	$(BIN)/toolsim tune '$(BACKEND)' $(if $(MODEL),--model '$(MODEL)') $(ARGS)

replay: $(VENV)/.addon  ## Replay flows/ and compare (UPDATE=1 to accept the differences)
	$(BIN)/toolsim replay $(if $(UPDATE),--update) flows

record-flows: setup  ## Re-record flows/ from real runs (ONLY=chat for names with that word)
	cd tests && ../$(BIN)/python -m flows.make $(ONLY)

# The script separately: it has the name of the package, and mypy checks only one of the two.
releases: setup  ## Record when each text of the test cases is released
	cd tests && ../$(BIN)/python -m support.releases

families: setup  ## Write the page of model families from the test cases, and raise its floors
	cd tests && ../$(BIN)/python -m support.families

# The pages as they are, with Sphinx: it reads Markdown as GitHub does.
$(VENV)/.docs: | $(VENV)/.addon
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## Build the pages as a site in build/site, and check their links
	$(BIN)/python -m sphinx -q -n -W --keep-going -c addon/docs/website -d build/doctrees . build/site
	@echo "build/site/README.html"

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
	@echo "make $@ is called make $< now" >&2
