# README's two commands: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-e2e test-gpu fuzz lint install constraints lock benchmark docs docs-version results browser clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## four architectures learn from each other: solo, FedMD, FCCL, FCCL+ in one table
	$(BIN)/fedchoir demo

test: $(STAMP) lint browser  ## everything that CI checks
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not e2e and not gpu'

test-e2e: $(STAMP)  ## real SuperLink and SuperNode processes on 127.0.0.1; they mostly wait, so three files at once
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/deploy_e2e -m e2e -n 3 --dist loadfile --durations=15

test-gpu: $(STAMP)  ## what needs a CUDA device; CI has none
	$(BIN)/pytest -m gpu

FUZZ_COUNT ?= 2000000
fuzz: $(STAMP)  ## changed inputs for every parser: none may crash (FUZZ_COUNT=200000 for a shorter run)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --count $(FUZZ_COUNT)

lint: $(STAMP)  ## style, types, import layers, vocabulary, secrets, packages (AUDIT=--strict: an audit must be possible)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/check_secrets.py
	PATH="$(BIN):$$PATH" $(BIN)/python -m tools.audit $(AUDIT)

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedchoir needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

constraints: $(STAMP)  ## write down the versions installed now
	(echo "# Every version that CI installs. Refresh: make constraints"; $(BIN)/python -m pip freeze --exclude-editable) > constraints.txt

lock: $(STAMP)  ## the packages of a server or node with hashes, in the versions of constraints.txt
	(echo "# Every package of a server or node, fedchoir[flower,privacy], with the hashes of its files. Refresh: make lock"; \
	  $(BIN)/uv pip compile pyproject.toml --quiet --extra flower --extra privacy --generate-hashes -c constraints.txt \
	  --no-emit-index-url --no-header --no-annotate --python-version 3.11) > deploy/requirements.lock

browser:  ## Chromium, for the tests of the report and the live page; playwright's own download is not used
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq chromium; \
	  else echo "make browser: the browser tests need Chromium; install it, for example: sudo apt-get install chromium" >&2; exit 1; fi

docs: $(STAMP)  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-version: $(STAMP)  ## the documentation as one version of a site, on the branch gh-pages (VERSION=1.2.0, MIKE=--push)
	PATH="$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(MIKE) $(VERSION) latest

results: $(STAMP)  ## the pages docs/results.md and docs/results/ from the runs stored under results/
	$(BIN)/python -m tools.results_pages results docs

benchmark: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
