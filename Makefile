# Two commands do all the set-up: `make demo` and `make test`. See README.md.
# The first that runs: a name on the PATH may be a shim without a Python behind it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test live bench wheel clean

demo: $(VENV)/.installed
	$(BIN)/knee demo

test: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2

# VLLM_HOME: a folder with venv/bin/vllm and a small model in tiny/; made there when it is missing.
# VLLM_OLD_HOME: one with an older release, for the tests of an upgrade.
VLLM_HOME ?= .vllm
VLLM_OLD_HOME ?= .vllm-old
live: $(VENV)/.developed
	test -x $(VLLM_HOME)/venv/bin/vllm || bash ../shared/real-vllm/install.sh $(VLLM_HOME)
	test -x $(VLLM_OLD_HOME)/venv/bin/vllm || bash ../shared/real-vllm/install.sh $(VLLM_OLD_HOME) 0.27.1
	VLLM_HOME=$(abspath $(VLLM_HOME)) VLLM_OLD_HOME=$(abspath $(VLLM_OLD_HOME)) $(BIN)/pytest -m live -v tests/live $(if $(ONLY),-k "$(ONLY)")

bench: $(VENV)/.developed
	$(BIN)/python -m bench $(ONLY)

# A wheel with the hot part of the simulated engine compiled; wants a C compiler and Python's headers.
wheel: $(VENV)/.developed
	HATCH_BUILD_HOOKS_ENABLE=1 HATCH_BUILD_CLEAN_HOOKS_AFTER=1 $(PIP) wheel --no-deps --no-build-isolation -w dist .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.developed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) dist
	find src -name '*.so' -delete
