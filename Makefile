# `make resnet` and `make test` do everything on a fresh machine that has Python >= 3.11 with venv
# (Debian and Ubuntu: apt-get install python3-venv make) and runs Linux.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A relative name: pip splits this variable at blanks, which the path of a checkout may hold. It
# reaches the isolated environments that packages are built in, too.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What is never imported need not be compiled; the rest is when it is.
PIP := $(BIN)/python -m pip install --quiet --no-compile --editable
# Where it is set, each of the thousands of interpreters that the tests start compiles all that it
# imports; empty is as good as not set.
export PYTHONDONTWRITEBYTECODE :=

# Tests wait for processes most of the time: two for each core of a small machine.
AT_ONCE := $(shell cores=$$(nproc); echo $$((cores < 8 ? 2 * cores : cores)))
START := $(shell date +%s)
# SEED=N: in a random order, which N decides
SEED ?=
export FAULTS_SEED ?= $(START)
PYTEST := $(BIN)/python -m pytest --quiet $(if $(SEED),-p randomly --randomly-seed=$(SEED))
.PHONY: resnet test rest test-all test-matrix quick faults mutants lint docs format clean help
.DELETE_ON_ERROR:

help:
	@echo "make resnet    train the example network with two workers"
	@echo "make test      linters, type check, unit tests and a few scenarios of each kind [SEED=...: random order]"
	@echo "make test-all  the same, then all scenarios, more examples of each property, coverage"
	@echo "make test-matrix  unit tests and smoke on each installed Python, newest and oldest dependencies"
	@echo "make quick     linters, type check, and the unit tests that take no time: under a minute"
	@echo "make faults    N=100 runs and sweeps with faults at random moments [SEED=...]"
	@echo "make mutants   whether the tests notice small defects that are put into the code"
	@echo "make lint      linters, type check, and the words of the docs"
	@echo "make docs      build the site of the docs below site/"
	@echo "make format    format the code"
	@echo "make clean     remove what make and the tests have made"

resnet: $(VENV)/.examples
	$(BIN)/python -m lllaunch +exp=resnet

# The linters need one core for most of the time that the tests take two.
test: $(VENV)/.test
	@ready=$$(date +%s); \
	$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & lint=$$!; \
	$(PYTEST) -n $(AT_ONCE) -m "smoke or not scenario"; code=$$?; \
	wait $$lint || code=1; cat $(VENV)/lint.log; \
	echo "make test: $$(($$(date +%s) - $(START))) s, of which $$((ready - $(START))) s for set-up"; \
	exit $$code

# Clusters have daemons, each with its own idea of how long an answer may take: one at a time.
rest: $(VENV)/.test-all
	@echo "faults: FAULTS_SEED=$(FAULTS_SEED)"
	@$(PYTEST) -n 1 -m "not smoke" tests/cluster >$(VENV)/cluster.log 2>&1 & cluster=$$!; \
	HYPOTHESIS_PROFILE=many $(PYTEST) -n $$(($(AT_ONCE) - 1)) --durations=20 --ignore=tests/cluster \
	  -m "hypothesis or scenario and not smoke"; code=$$?; \
	wait $$cluster || code=1; cat $(VENV)/cluster.log; \
	exit $$code
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet -n $(AT_ONCE) -m "not hypothesis" tests/unit
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	@echo "make rest: $$(($$(date +%s) - $(START))) s"

test-all: test rest

# What composes a config with Hydra takes most of a second, and so is left to `make test`.
quick: lint
	HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(AT_ONCE) -m "not slow and not composing" tests/unit

# Each environment gets a torch of its own: gigabytes where pip finds no build for CPUs. The oldest
# dependencies have wheels for the oldest Python only.
MATRIX ?= 3.11-oldest 3.11 3.12 3.13 3.14
TESTS ?= -m "smoke or not scenario"
test-matrix: export PIP_CONSTRAINT :=
test-matrix:
	@sed '/^test = /,$$d' pyproject.toml | grep -oE '[a-z-]+>=[0-9.]+' | sed 's/>=/==/' >$(VENV)/oldest.txt; \
	code=0; for each in $(MATRIX); do \
	  python=python$${each%-oldest}; new=$(VENV)/matrix-$$each; \
	  if ! $$python -c "" 2>/dev/null; then echo "matrix: $$each: $$python is not installed"; continue; fi; \
	  case $$each in *-oldest) limit="-c $(VENV)/oldest.txt";; *) limit=;; esac; \
	  $$python -m venv --clear $$new && $$new/bin/pip install --quiet $$limit --editable '.[test]' && \
	  $$new/bin/python -m pytest --quiet $(TESTS) && echo "matrix: $$each: passed" || \
	  { echo "matrix: $$each: FAILED"; code=1; }; \
	done; exit $$code

N ?= 100
faults: $(VENV)/.test-all
	$(BIN)/python -m tests.faults -n $(N) --seed "$(SEED)"

mutants: $(VENV)/.test-all
	$(BIN)/python -m tests.mutants

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/check_prose.py

# What links and anchors lead to nothing is an error; nothing is loaded from elsewhere.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: site/index.html; with search: $(BIN)/python -m http.server --directory site"

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamps are older than what they depend on when something is to be installed again.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lllaunch needs Python 3.11 or newer; choose one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.examples: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) '.[examples]'
	@touch $@

$(VENV)/.test: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) '.[test]'
	@touch $@ $(VENV)/.examples

$(VENV)/.docs: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) '.[docs]'
	@touch $@

$(VENV)/.test-all: $(VENV)/.venv pyproject.toml constraints.txt tests/browser/package.json
	$(PIP) '.[test-all]'
	@# no package of pip's has them; where there is no npm, tests that hold pages to the rules of HTML
	@# and of accessibility are skipped
	-@command -v npm >/dev/null && cp tests/browser/package.json $(VENV) && \
	  npm install --silent --no-audit --no-fund --no-package-lock --prefix $(VENV)
	@touch $@ $(VENV)/.test $(VENV)/.examples
