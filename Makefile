# Two commands do everything: `make demo` and `make test`. Each installs what it needs first.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: install demo test test-slow screenshots check bench bench-full bench-parts lock clean

install: $(INSTALLED)  ## environment and jars; runs nothing
	@$(BIN)/python -m headrace.substrate.jars

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Headrace needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (about 800 MB: a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: install  ## cards and fraud-rules with live traffic on a real log and Spark; Ctrl-C ends and cleans up
	@$(BIN)/python apps/demo.py

test: install  ## all tests but the slow ones; says at its end what was left out for want of which program
	@$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder; code=$$?; test $$code -eq 1 || exit $$code; \
	echo "The tests above that failed, once more and by themselves: whichever fails again has failed."; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-slow: install  ## what takes minutes: kill -9 of pipelines and of writers, a Spark cluster
	@$(BIN)/python -m pytest -m slow

screenshots: install  ## the pictures in docs/images: the console over the demo, and over the other applications
	@SCREENSHOTS=1 $(BIN)/python -m pytest -m slow tests/apps/test_screenshots.py

check: $(INSTALLED)  ## format, lint, types: under a minute
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: install  ## next to the peers, on one broker and the same data: about ten minutes
	@cd benchmarks && ../$(BIN)/python -m compare

bench-full: install  ## the same, with all peers and more of everything: an hour or two; writes docs/benchmarks.md
	@cd benchmarks && ../$(BIN)/python -m compare --full --write

bench-parts: install  ## what single parts cost, each next to what it is made of
	@for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

lock: $(INSTALLED)  ## newest versions within pyproject's ranges, with hashes
	@$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --quiet --upgrade --output-file requirements.lock

clean:
	rm -rf .venv .headrace .mypy_cache .ruff_cache .pytest_cache
