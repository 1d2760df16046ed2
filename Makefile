# Everything one does with a checkout. `make` alone lists it.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready

# Compiled once, not anew by each of the hundreds of processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-fast test-pg15 check bench bench-long docs clean

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Mainspring needs Python 3.11 or newer as '$(PYTHON)' (or say: make setup PYTHON=python3.12)"; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(PY) || uv venv --quiet --python "$(PYTHON)" $(VENV); \
	  uv pip install --quiet --python $(PY) -c constraints.txt -e '.[embedded,dev]'; \
	else \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "Python's venv module is missing; on Debian and Ubuntu: apt-get install -y python3-venv"; exit 1; }; \
	  test -x $(PY) || $(PYTHON) -m venv $(VENV); \
	  echo "installing into $(VENV) (about half a minute)"; \
	  $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'; \
	fi
	@touch $@

run: $(READY) ## start everything here; Ctrl-C stops it
	@exec $(PY) -m mainspring dev

demo: $(READY) ## the whole story without a browser, a real SIGKILL included (under 90 s)
	@exec $(PY) -m mainspring.demo

test: $(READY) ## all tests
	$(PY) -m pytest -q -n 2

test-fast: $(READY) ## the tests that need no server processes and no patience (under a minute)
	@# left out by name: its requests are made up while it is collected, which takes seconds
	$(PY) -m pytest -q -n 2 -m 'not slow and not processes' --ignore tests/server/test_schema.py

test-pg15: $(READY) ## the core of the tests on a PostgreSQL 15 of this machine, the oldest that is served
	$(PY) -m tests.oldest -n 2

check: $(READY) ## format, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

bench: $(READY) ## measure the engine beside its peers, and what scale costs (under 4 minutes); writes bench/report.json
	@$(BENCH_READY)
	$(PY) bench/run.py

bench-long: $(READY) ## the same in full sizes: 10,000 tenants, 2,000 runners, 10 million finished rows (under 20 minutes)
	@$(BENCH_READY)
	$(PY) bench/run.py --long

BENCH_READY = if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(PY) -c constraints.txt -e '.[embedded,bench]'; \
	else $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,bench]'; fi

docs: $(READY) ## write docs/reference/ from the code
	$(PY) docs/generate.py

clean: ## remove .venv and caches; the state folder stays (mainspring dev reset)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
