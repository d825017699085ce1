# `make run` and `make test` need Python (3.11 or newer) and nothing else; they build .venv here and install only there.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt
CODE   := morphling tests benchmarks

.DEFAULT_GOAL := help
.PHONY: help run test test-fast test-gpu check format bench readme clean

help:
	@echo "make run        install, run scenarios/quickstart.yaml, print its results"
	@echo "make test       install with the test tools, run every test"
	@echo "make test-fast  the tests without the slow ones"
	@echo "make test-gpu   the tests that need a CUDA device"
	@echo "make check      lint, format, types, storeys"
	@echo "make format     put the code into its format"
	@echo "make bench      the engine beside its slow twins"
	@echo "make readme     write the real output of the commands into README.md and the tables of docs/devices.md"
	@echo "make clean      remove .venv and what tools leave behind (runs/ stays)"

run: $(VENV)/.installed
	@$(BIN)/morphling run scenarios/quickstart.yaml

# One file of tests per process, so that what a file sets up is set up once.
test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

test-fast: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile -m "not slow"

# Skips, with the reason, what this machine has no CUDA device, driver or torch for.
test-gpu: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -rs tests/gpu

check: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict morphling
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix-only -q .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed
	@$(BIN)/python benchmarks/engine.py

readme: $(VENV)/.installed-dev
	@$(BIN)/python tests/docs/test_readme.py
	@$(BIN)/python tests/docs/test_devices_page.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than the files that say what to install, so nothing is installed twice.
$(VENV)/.installed: $(INPUTS)
	$(call venv)
	@echo "installing into $(VENV) …"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(INPUTS)
	$(call venv)
	@echo "installing into $(VENV), with the test tools …"
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@

define venv
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || { \
	found=$$($(PYTHON) --version 2>/dev/null | head -n 1); \
	echo "Morphling needs Python 3.11 to 3.14; '$(PYTHON)' is $${found:-not there}." >&2; \
	echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef
