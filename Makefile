SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The processes of a run are the program's own: more test workers than this only wait for each other.
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test docs lint type check clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A command of the command line, shown and run.
shown = printf '\n$$ tilelink %s\n' '$(1)'; $(BIN)/tilelink $(1)

demo: $(READY) ## Check, show, run and compile a fused kernel on four ranks of this machine's CPU
	@$(call shown,check ag_gemm --ranks 4)
	@$(call shown,show ag_gemm --ranks 4 --stage source) | sed -n '1,/dl.notify/p'; echo '...'
	@$(call shown,run ag_gemm --ranks 4 --repeat 3)
	@$(call shown,simulate ag_gemm --schedule h200 --ranks 4)
	@$(call shown,show ag_gemm --ranks 4 --target sm_90 --stage ptx) | grep -c '' | sed 's/$$/ lines of PTX for sm_90/'

test: $(READY) ## Run the tests (ARGS="-k name" chooses, ARGS=--thorough runs all)
	@$(BIN)/python -m pytest -n $(WORKERS) -q $(ARGS)

docs: $(READY) ## Build the site of the documents, with its pictures, into docs/_build
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m docs.pages docs/start.md docs/six_schedules.md
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build
	@echo docs/_build/index.html

lint: $(READY) ## Run ruff
	@$(BIN)/ruff check .

type: $(READY) ## Run pyright
	@$(BIN)/pyright --pythonpath $(BIN)/python

check: lint type test ## Run lint, type and test

clean: ## Remove the environment and everything built
	@rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find tilelink tests -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@echo "preparing $(VENV) (once; torch and its CUDA libraries are gigabytes, which can take many minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
