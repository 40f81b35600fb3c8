# `make` alone lists the targets. Everything runs in .venv, which the first target that needs it makes.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SHELL  := /bin/bash

# The first Python of at least 3.11 that can really be started; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$candidate" && break; done)

# Much of `make test` is waiting, so there are more workers than cores; two at most run Spark (tests/scheduling.py).
# Many more would be too many: Spark gives a new Python process 10 seconds to answer.
PYTEST_FLAGS ?= -n 5 --dist loadgroup
# Those of `make check` wait for little.
CHECK_FLAGS  ?= -n 3 --dist worksteal
SEEDS        ?= 60000

# What Python and pytest make of a file once, thousands of processes read; empty is as if it were not set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup java demo check test record soak collected bench lint format lock clean

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv with everything that is locked

$(STAMP): requirements-dev.lock pyproject.toml lab/pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "tidings needs Python 3.11 or newer, and there is none on the PATH:" \
			"install one, or say where it is with make PYTHON=/path/to/python." >&2; exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$(PYTHON) cannot make virtual environments:" \
			"install its venv module (Debian and Ubuntu: the package python3-venv)." >&2; exit 1; fi
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@# PySpark comes as source and has only a setup.py: older pips complain unless told to build it as all others (PEP 517).
	@# Most of what is installed nobody ever imports: Python compiles the rest when it is first wanted.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --use-pep517 --require-hashes \
		-r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e lab
	@$(MAKE) --no-print-directory java
	@touch $@

java: # Spark runs on it; everything else does without
	@if command -v java >/dev/null || { [ -n "$(JAVA_HOME)" ] && [ -x "$(JAVA_HOME)/bin/java" ]; }; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Java, on which Spark runs ..."; \
		apt-get update -qq >/dev/null; \
		for version in 17 21; do \
			apt-get install -qq -y openjdk-$$version-jre-headless >/dev/null 2>&1 && exit 0; done; fi; \
	echo "There is no Java, so the tests of Spark will be skipped:" \
		"install Java 17 or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless)."

demo: $(STAMP) ## publishers, subscribers, a crash and a recovery in front of your eyes
	@$(BIN)/tidings demo

check: $(STAMP) ## lint, types and unit tests: what to run after changing a line
	@$(MAKE) --no-print-directory -j 2 lint collected COLLECTED="tests/unit src/tidings lab/tidings_lab"
	$(BIN)/pytest $(CHECK_FLAGS) tests/unit src/tidings lab/tidings_lab

test: $(STAMP) ## lint, types and every test that ends in minutes
	@$(MAKE) --no-print-directory -j 3 lint collected $(CLASSES)
	$(BIN)/pytest $(PYTEST_FLAGS)

CLASSES := $(VENV)/spark.jsa

$(CLASSES): $(STAMP) # What Java makes of Spark's classes: a dozen processes read it.
	@$(BIN)/python -m tests.spark.class_archive $@ 2>$(VENV)/.classes || { tail -n 50 $(VENV)/.classes; exit 1; }

collected: $(STAMP) # Compiles the tests, beside the linters: or else every worker does it for itself.
	@$(BIN)/pytest --collect-only --quiet $(COLLECTED) >$(VENV)/.collected 2>&1 || \
		{ tail -n 50 $(VENV)/.collected; exit 1; }

record: $(STAMP) ## every test, and write down how long it took and which seeds find planted bugs: for the next runs
	$(BIN)/pytest $(PYTEST_FLAGS) --record

soak: $(STAMP) ## the long tests, and SEEDS=60000 fresh seeds of all simulated worlds
	$(BIN)/pytest -m soak --timeout=0 $(PYTEST_FLAGS) -n 0
	$(BIN)/tidings simulate --world all --seeds $(SEEDS) --all

bench: $(STAMP) ## measure, beside the limits of this machine
	@$(BIN)/tidings bench

lint: $(STAMP) ## only ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

lock: ## write the lock files anew (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv on the PATH: install it with pipx install uv." >&2; exit 1; }
	$(LOCK) --upgrade pyproject.toml -o requirements.lock
	$(LOCK) --upgrade pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) --upgrade pyproject.toml --extra docs -c requirements-dev.lock -o requirements-docs.lock

clean: ## remove .venv and everything that was made
	rm -rf $(VENV) $(DOCS) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

DOCS := .venv-docs
.PHONY: docs hooks

docs: $(DOCS)/.installed ## the documentation as a site, in site/; dead links fail
	@# Without --quiet, which would not count warnings either.
	@NO_COLOR=1 $(DOCS)/bin/mkdocs build --strict
	@echo "The documentation is in site/index.html."

$(DOCS)/.installed: requirements-docs.lock
	@"$(PYTHON)" -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --use-pep517 --require-hashes -r requirements-docs.lock
	@touch $@

hooks: $(STAMP) ## have git check form, lint and types before each commit (needs pre-commit)
	@command -v pre-commit >/dev/null || { echo "make hooks needs pre-commit on the PATH: install it with pipx install pre-commit." >&2; exit 1; }
	@pre-commit install
