# Two commands are enough: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
SITE := $(VENV)/.site
KERNELS := $(VENV)/kernels
AUDIT := $(VENV)/.audit
MUTATION := $(VENV)/.mutation
# Prints the directory of a model with trained weights; a first call downloads it.
REAL := $(BIN)/python -m tests.support.models.real_weights
# Environments of load generators and servers of others, and their traces.
LEAGUE ?= $(HOME)/.cache/semantic-league
# One more than two cores: a test often waits for a process that starts.
TEST_PROCESSES ?= 3
# Each test process compiles 1,500 files, and each process of a service 400, unless they are kept.
unexport PYTHONDONTWRITEBYTECODE
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: help demo serve test test-unit test-integration test-e2e test-smoke test-fast conformance coverage check lint typecheck security licenses docs docs-serve screenshots packages format \
	bench report soak nightly chaos simulation tampering fuzz mutation flakes experiments lock audit sbom dist dist-check release clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

$(RUNTIME): ops/deploy/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("semantic needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	@echo "setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r ops/deploy/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(DEV): $(RUNTIME) ops/deploy/requirements-dev.txt ops/deploy/requirements-vision.txt
	@echo "adding the tools for tests and checks"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r ops/deploy/requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r ops/deploy/requirements-vision.txt
	@touch $@

$(SITE): $(DEV) ops/deploy/requirements-docs.txt
	@echo "adding the tools for the documentation site"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r ops/deploy/requirements-docs.txt
	@touch $@

demo: $(RUNTIME) ## Serve the demo model, or trained weights: make demo MODEL=smollm2 or gemma3-270m
	@$(if $(MODEL),model="$$($(REAL) $(MODEL))" && exec $(BIN)/semantic serve --model "$$model",exec $(BIN)/semantic serve)

serve: $(RUNTIME) ## Serve a model: make serve MODEL=mlx-community/… or a directory
	@exec $(BIN)/semantic serve $(if $(MODEL),--model $(MODEL))

# PostgreSQL runs as a user of its own, who must reach its files below TMPDIR.
test: $(SITE) ## Run every test, with real redis-server, real MLX, trained weights and, where npm is, Claude Code
	@$(if $(ARGS),,$(REAL) smollm2-float32 >/dev/null || echo "their tests are skipped")
	@TMPDIR=$$(mktemp -d "$$($(BIN)/python -m tests.support.fast_directory)/semantic-test.XXXXXX") && chmod 711 "$$TMPDIR" && export TMPDIR && \
		trap 'rm -rf "$$TMPDIR"' EXIT && trap 'exit 130' INT TERM && \
		$(BIN)/python -m tests.support.models.kept_kernels take $(KERNELS) && \
		$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 4 $(ARGS) && \
		$(BIN)/python -m tests.support.models.kept_kernels keep $(KERNELS)

test-unit: $(DEV) ## Run the tests of single modules
	@$(BIN)/python -m pytest -n 2 tests/unit $(ARGS)

test-integration: $(SITE) ## Run the tests of several modules: real files, Redis, PostgreSQL, models and ports
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder tests/contracts tests/integration $(ARGS)

test-e2e: $(SITE) ## Run the tests of a whole service in processes of its own
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder tests/e2e $(ARGS)

test-smoke: $(SITE) ## Start a service, ask it in each protocol, open its page, and stop it (a minute)
	@$(BIN)/python -m pytest tests/e2e/service/test_service.py tests/e2e/sdks/test_sdks.py tests/e2e/page/test_smoke.py $(ARGS)

conformance: $(SITE) ## Run the suites of others: Open Responses, AgentBlaster, JSON Schema, cache-pressure, Durable Streams
	@$(BIN)/python -m pytest --nightly --log-cli-level=INFO tests/e2e/conformance tests/e2e/sdks/test_durable_streams.py $(ARGS)

coverage: $(SITE) ## Run every test under coverage, and hold each layer to its floor (half an hour)
	@mkdir -p dist
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o dist/coverage.json
	@$(BIN)/python -m tests.architecture.coverage_floor dist/coverage.json

test-fast: $(DEV) ## Run the tests in pure Python: no redis, PostgreSQL, MLX or processes
	@$(BIN)/python -m pytest --fast -n 2 $(ARGS)

check: $(DEV) lint typecheck ## Format, lint, types, layers, dead names, spelling, word list, waiting in tests, secrets, large files
	@$(BIN)/lint-imports --config tests/architecture/layers.toml
	@$(BIN)/codespell
	@$(BIN)/python -m tests.architecture.wordlist
	@$(BIN)/python -m tests.architecture.docstrings
	@$(BIN)/python -m tests.architecture.reachable
	@$(BIN)/python -m tests.architecture.waiting
	@$(BIN)/python -m tests.supply_chain.secret_scan
	@$(BIN)/python -m tests.supply_chain.large_files

lint: $(DEV) ## Check the format and the rules of ruff only
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

typecheck: $(DEV) ## Check the types only
	@$(BIN)/mypy

security: $(AUDIT) ## Look for secrets, risky workflows and known vulnerabilities
	@$(BIN)/python -m tests.supply_chain.secret_scan
	@$(VENV)/audit/bin/zizmor --offline --quiet .github
	@$(BIN)/python -m tests.supply_chain.audit

licenses: $(DEV) ## Check the licence of every package and write the table of docs/licences.md
	@$(BIN)/python -m tests.supply_chain.licences

docs: $(SITE) ## Build the documentation site in build/site; open build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet -f docs/site/mkdocs.yml

docs-serve: $(SITE) ## Show the documentation site on loopback, and build it again after each change
	@NO_MKDOCS_2_WARNING=1 exec $(BIN)/python -m mkdocs serve -f docs/site/mkdocs.yml -a 127.0.0.1:8001

screenshots: $(DEV) ## Write the screenshots of docs/page.md (needs chromium)
	@$(BIN)/python -m tests.support.page.screenshots

packages: $(DEV) ## Write the tables of packages, metrics, plans and licences in docs, and the example settings
	@$(BIN)/python -m tests.architecture.packages
	@$(BIN)/python -m tests.architecture.metrics_table
	@$(BIN)/python -m docs.site.settings_examples
	@$(BIN)/python -m docs.site.plan_table
	@$(BIN)/python -m tests.supply_chain.licences

format: $(DEV) ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV) ## Measure this service beside mlx_lm.server on SmolLM2: make bench ARGS="--quick", or MODEL=DIR
	@model="$(or $(MODEL),$$($(BIN)/python -m tests.support.models.real_weights smollm2-float32))" && \
		exec $(BIN)/python -m bench.together --model "$$model" $(ARGS)

.PHONY: league
league: $(DEV) ## Measure beside others by their load generators, and write docs/benchmarks/league.md; FULL=1 takes hours
	@$(BIN)/python -m bench.report --only league --again $(if $(FULL),,--quick) --rivals $(LEAGUE) $(ARGS)

report: $(DEV) ## Run the benchmarks on a quiet machine and write their pages in docs: make report ARGS="--only soak"
	@$(BIN)/python -m bench.report $(ARGS)

soak: $(DEV) ## Work for an hour under mixed load, and look for what grows: make soak ARGS="--minutes 10"
	@$(BIN)/python -m bench.soak $(ARGS)

.PHONY: stress
stress: $(DEV) ## Run the stress cases, and write docs/benchmarks/stress.md: make stress ARGS="--only stress-full --again"
	@$(BIN)/python -m bench.report --only stress $(ARGS)

.PHONY: soak-hour
soak-hour: $(DEV) ## Work for an hour on a quiet machine, and write docs/benchmarks/soak.md with table and plots
	@$(BIN)/python -m bench.report --only soak --again --soak-minutes 60 $(ARGS)

nightly: $(SITE) ## Run the tests with their long enumerations, weeks of the simulator, and mixed load
	@$(if $(ARGS),,$(REAL) smollm2-float32 gemma3-270m >/dev/null || echo "their tests are skipped")
	@$(BIN)/python -m pytest --nightly -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)
	@$(BIN)/python -m tests.simulation --weeks 200 --minutes 5
	@$(BIN)/python -m bench.soak --minutes 5 --swap-minutes 2

chaos: $(DEV) ## Kill parts 100 times with 50 other faults, ten times, and record each run in docs (hours)
	@$(BIN)/python -m bench.chaos --record $(or $(ARGS),--kills 100 --slices 10)

tampering: $(DEV) ## Change 10,000 random places of logs, and record each 1,000 in docs (minutes)
	@$(BIN)/python -m bench.tampering --record $(ARGS)

simulation: $(DEV) ## Simulate 100,000 lives under faults, and record each 10,000 in docs (hours)
	@$(BIN)/python -m tests.simulation --record $(or $(ARGS),--examples 100000)

fuzz: $(DEV) ## Send almost valid requests and torn connections: make fuzz ARGS="--bodies 20000"
	@$(BIN)/python -m bench.fuzz $(ARGS)

$(MUTATION): $(DEV) ops/deploy/requirements-mutation.txt
	@echo "adding mutmut in an environment of its own, which imports that of the tests"
	@$(PYTHON) -m venv $(VENV)/mutation
	@$(VENV)/mutation/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r ops/deploy/requirements-mutation.txt
	@$(BIN)/python -c 'import sysconfig as s; print("import site; site.addsitedir(%r)" % s.get_path("purelib"))' \
		> $$($(VENV)/mutation/bin/python -c 'import sysconfig as s; print(s.get_path("purelib"))')/tests.pth
	@touch $@

mutation: $(MUTATION) ## Change domain/ in small ways and list what no test notices (hours): make mutation ARGS=domain/job
	@$(BIN)/python -m tests.mutation $(ARGS)

flakes: $(SITE) ## Run tests in random order on busy processors: make flakes ROUNDS=20 ARGS="tests/e2e/faults"
	@$(BIN)/python -m tests.flakes $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

experiments: $(DEV) ## Run the numbered experiments of docs/experiments.md
	@$(BIN)/python -m bench.experiments.all $(ARGS)

lock: ## Pin every dependency with hashes (needs uv)
	uv pip compile $(LOCK) --extra cpu pyproject.toml -o ops/deploy/requirements.txt
	uv pip compile $(LOCK) --extra cpu --extra dev -c ops/deploy/requirements.txt pyproject.toml -o ops/deploy/requirements-dev.txt
	uv pip compile $(LOCK) --extra cpu --extra docs -c ops/deploy/requirements-dev.txt pyproject.toml -o ops/deploy/requirements-docs.txt
	uv pip compile $(LOCK) --extra cpu --extra postgres --extra otel -c ops/deploy/requirements.txt pyproject.toml -o ops/deploy/requirements-container.txt
	uv pip compile $(LOCK) --no-deps ops/deploy/vision.in -o ops/deploy/requirements-vision.txt
	uv pip compile $(LOCK) -c ops/deploy/requirements-dev.txt ops/deploy/audit.in -o ops/deploy/requirements-audit.txt
	uv pip compile $(LOCK) -c ops/deploy/requirements-dev.txt ops/deploy/mutation.in -o ops/deploy/requirements-mutation.txt
	@for one in openai_agents chat_page; do \
	  uv pip compile $(LOCK) docs/examples/$$one/requirements.in -o docs/examples/$$one/requirements.txt; \
	done

$(AUDIT): $(DEV) ops/deploy/requirements-audit.txt
	@echo "adding pip-audit in an environment of its own"
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r ops/deploy/requirements-audit.txt
	@touch $@

audit: $(AUDIT) ## Ask the vulnerability database about every locked package (needs the network)
	@$(BIN)/python -m tests.supply_chain.audit

sbom: $(DEV) ## Write dist/semantic.cdx.json, a CycloneDX bill of materials
	@$(BIN)/python -m tests.supply_chain.sbom dist/semantic.cdx.json

dist: $(DEV) ## Build the wheel and the source package in dist/; the same commit gives the same bytes
	@rm -f dist/semantic-*.whl dist/semantic-*.tar.gz
	@$(BIN)/python -m hatchling build -d dist

dist-check: dist ## Install the packages of dist/ with pip, pipx and uv, and use each (needs the network)
	@$(BIN)/python -m pytest --nightly tests/e2e/package tests/supply_chain $(ARGS)

release: dist sbom ## Write the files of a release into dist/: make release TAG=v1.2.3 HOMEPAGE=https://…
	@$(BIN)/python -m tests.supply_chain.release notes "$$TAG" > dist/notes.md
	@$(BIN)/python -m tests.supply_chain.release formula "$$TAG" --homepage "$$HOMEPAGE"
	@cp ops/deploy/requirements.txt dist/requirements.txt

clean: ## Remove the environment and caches, never the data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
