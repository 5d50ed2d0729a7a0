# verl-ext: `make demo` shows the product, `make test` tests it; both set up all they need in .venv/.
VERL ?= 0.9.1
PYTHON ?= python3

VENV := .venv/verl-$(VERL)
BIN := $(VENV)/bin
CONSTRAINTS := constraints/verl-$(VERL).txt
READY := $(VENV)/.ready
INSTALL := -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo train test test-all trained matrix e2e soak bench audit docs sanitize dist lint format constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make the virtual environment for verl $(VERL)

$(READY): $(CONSTRAINTS) setup.cfg setup.py pyproject.toml verl_ext/_core.c
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "verl-ext needs Python >= 3.10")'
	@echo "Setting up $(VENV): about 2 GB from the package registry, some minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c $(CONSTRAINTS) verl==$(VERL) -e '.[test,lint]'
	touch $@

# verl before 0.9 knows no entry points.
LOADING := $(if $(filter 0.7.% 0.8.%,$(VERL)),VERL_USE_EXTERNAL_MODULES=verl_ext.autoload)
VERSIONS := $(patsubst constraints/verl-%.txt,%,$(wildcard constraints/verl-*.txt))

demo: $(READY) ## mixed reward schemas on real verl and Ray: stock beside verl-ext
	@$(LOADING) $(BIN)/verl-ext demo $(if $(ROWS),--rows "$(ROWS)")

# Two processes, of which one runs all that needs Ray (tests/conftest.py).
IN_TWO := -n 2

# What depends on how rows are read, once more without the compiled core.
PURE = VERL_EXT_PURE=1 $(LOADING) $(BIN)/python -m pytest $(IN_TWO) -q -m "not slow and not ray" \
	tests/schema tests/protocol tests/laws tests/test_machine.py tests/test_threads.py

test: $(READY) ## the tests, on real verl and Ray (ARGS=... goes to pytest: one file in seconds)
	$(LOADING) $(BIN)/python -m pytest $(or $(ARGS),$(IN_TWO) -m "not slow")

test-all: $(READY) ## those, what takes long (clusters of several nodes, the demo, every trainer in every order), and what reads rows without the compiled core
	$(LOADING) $(BIN)/python -m pytest $(IN_TWO) $(ARGS)
	$(if $(ARGS),,$(PURE))

matrix: ## what touches verl, tested on every supported version of it (VERSIONS=... for some)
	@for version in $(VERSIONS); do echo "verl $$version"; $(MAKE) --no-print-directory test-all VERL=$$version \
		ARGS="-q --no-header tests/plugin tests/integration tests/e2e_v1 tests/protocol tests/test_doctor.py" || exit 1; done

trained: $(READY) ## real training on a CPU, tested: fourteen runs of verl's command line, a quarter of an hour (ARGS=... goes to pytest)
	$(BIN)/python -m pytest tests/trained -o python_files='trained_*.py' -p no:cacheprovider $(ARGS)

# From tests/: the wheel of verl installs a package of the name `tests`.
e2e: $(READY) ## every trainer to the end on CPU, stock beside verl-ext (ARGS=--short: in a minute)
	@cd tests && $(LOADING) $(CURDIR)/$(BIN)/python -m e2e $(ARGS)

train: $(READY) ## a tiny model trained by verl's own command line: stock beside verl-ext (ARGS=--all; REWARD=my.py:compute_score ROWS=my.parquet)
	@$(BIN)/verl-ext train --to build/train $(if $(REWARD),--reward "$(REWARD)") $(if $(ROWS),--rows "$(ROWS)") $(ARGS)

soak: $(READY) ## a hundred thousand random programs on batches, as many batches read by both versions, ten thousand through real Ray (two hours at most)
	VERL_EXT_PROGRAMS=100000 VERL_EXT_READ=100000 VERL_EXT_BATCHES=10000 timeout 7200 $(BIN)/python -m pytest -q -s \
		tests/schema/test_core.py tests/test_machine.py tests/integration/test_generated.py

sanitize: $(READY) ## the compiled core under AddressSanitizer and UBSan, read by ten thousand generated batches (needs gcc)
	$(BIN)/python tests/sanitized.py

bench: $(VENV)/.bench ## ours beside stock, the plain union and data frames, in one table (SAVE=file: as JSON too; PAGES=docs: the charts and the table there; ARGS=... goes to pytest)
	@$(BIN)/python -m pytest tests/benchmarks -o python_files='bench_*.py' -o python_functions='bench_*' -p no:cacheprovider \
		--quiet --no-header --no-summary --benchmark-quiet $(if $(SAVE),--save-figures "$(SAVE)") $(if $(PAGES),--pages "$(PAGES)") $(ARGS)

# In the same environment, under the same constraints: what the tests run on stays as it is.
$(VENV)/.bench: $(READY)
	$(BIN)/python $(INSTALL) -c $(CONSTRAINTS) -e '.[bench]'
	touch $@

audit: ## advisories on what verl-ext requires, as pinned for verl $(VERL); asks PyPI
	$(PYTHON) -m venv .venv/audit && .venv/audit/bin/python $(INSTALL) pip-audit
	grep -E '^(numpy|torch|tensordict|wrapt|rich|typer)==' $(CONSTRAINTS) > .venv/audit/required.txt
	.venv/audit/bin/pip-audit --disable-pip --no-deps -r .venv/audit/required.txt

docs: .venv/docs/.ready ## the documentation as a site in build/site, warnings as errors
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict --quiet

.venv/docs/.ready: constraints/docs.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python $(INSTALL) -r $<
	touch $@

# The wheel with the core holds for Python 3.10 and later (abi3), the one without for any machine.
dist: $(READY) ## the two wheels and the sdist in dist/, tried in an empty environment
	$(BIN)/python $(INSTALL) build
	rm -rf dist build/lib* build/bdist*
	$(BIN)/python -m build --outdir dist . >/dev/null
	VERL_EXT_PURE=1 $(BIN)/python -m build --wheel --outdir dist . >/dev/null
	$(PYTHON) -m venv --clear build/try && build/try/bin/python $(INSTALL) -c $(CONSTRAINTS) "$$(echo dist/*-none-any.whl)[cli]"
	@for file in dist/*; do build/try/bin/python $(INSTALL) --force-reinstall --no-deps "$$file" \
		&& (cd build && try/bin/python ../tests/smoke.py "$$file") || exit 1; done

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One resolution for every Python >= 3.10. Drivers of GPUs are left out: a constraint file only pins what is installed.
constraints: ## work out constraints/verl-$(VERL).txt anew
	$(PYTHON) -m venv .venv/uv && .venv/uv/bin/pip install --quiet uv
	.venv/uv/bin/uv pip compile --universal --python-version 3.10 --no-annotate --no-header --quiet --extra test --extra lint \
		constraints/verl-$(VERL).in setup.cfg | grep -Ev '^(nvidia|cuda|triton)' > $(CONSTRAINTS)

clean: ## remove the environments and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
