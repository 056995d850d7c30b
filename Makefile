# README's two commands: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint install constraints benchmark clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## four architectures learn from each other: solo, FedMD, FCCL, FCCL+ in one table
	$(BIN)/fedchoir demo

test: $(STAMP) lint  ## everything that CI checks
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedchoir needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

constraints: $(STAMP)  ## write down the versions installed now
	(echo "# Every version that CI installs. Refresh: make constraints"; $(BIN)/python -m pip freeze --exclude-editable) > constraints.txt

benchmark: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
