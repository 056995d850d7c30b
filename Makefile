# README's two commands: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-e2e test-gpu lint install constraints benchmark docs results browser clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## four architectures learn from each other: solo, FedMD, FCCL, FCCL+ in one table
	$(BIN)/fedchoir demo

test: $(STAMP) lint browser  ## everything that CI checks
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not e2e and not gpu'

test-e2e: $(STAMP)  ## real SuperLink and SuperNode processes on 127.0.0.1, one test after the other
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/deploy_e2e -m e2e --durations=10

test-gpu: $(STAMP)  ## what needs a CUDA device; CI has none
	$(BIN)/pytest -m gpu

lint: $(STAMP)  ## style, types, import layers, vocabulary
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_words.py

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedchoir needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

constraints: $(STAMP)  ## write down the versions installed now
	(echo "# Every version that CI installs. Refresh: make constraints"; $(BIN)/python -m pip freeze --exclude-editable) > constraints.txt

browser:  ## Chromium, for the tests of the report and the live page; playwright's own download is not used
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq chromium; \
	  else echo "make browser: the browser tests need Chromium; install it, for example: sudo apt-get install chromium" >&2; exit 1; fi

docs: $(STAMP)  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

results: $(STAMP)  ## the pages docs/results.md and docs/results/ from the runs stored under results/
	$(BIN)/python -m tools.results_pages results docs

benchmark: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
