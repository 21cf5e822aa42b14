# make test    build .venv if needed, then run every check and every test
# make check   the same without the slow kinds of tests: lint, types and the fast majority
# make demo    build .venv if needed, then prune a small network on embedded data and show what it is worth
# make zoo     prune every network of the zoo at random, compare, and print the table, then run every combination of which
#              make test runs a sample (about an hour; ZOO="--rows FILE" to continue)
# make fuzz    draw new cases for every property test, sixteen times as many broken files, and 200 faults injected into runs
# make browser install Debian's Chromium, which Playwright drives in the tests of reports (without it they are skipped)
# make yolo    install Ultralytics (AGPL-3.0), which nothing else needs, and run the tests that use it
# make bench   measure attach + extract, and the speed of data
# make docs    build the documentation's site into build/site, every link checked
# make wheel   build the last commit's wheel into dist: the same bytes every time, with a bill of materials inside
# make release-check   build the wheel and the source distribution, and check that a release would be consistent
# make lint    ruff, mypy, import-linter, and the deny list of phrases (scripts/check_prose.py)
# make format  let ruff sort, mend and format
# make clean   remove .venv and all caches

PYTHON  ?= python3
WORKERS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

MAKEFLAGS += --no-print-directory

# Python compiles what is imported (installing with --no-compile saves the other two thirds), and keeps it, even where
# the environment says otherwise: the workers, the next run and a hundred short processes find it again.
export PYTHONDONTWRITEBYTECODE =

# One thread for each pytest worker: more would fight over the same cores.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := test
.PHONY: test check demo zoo fuzz yolo bench docs wheel release-check lint format clean install browser

test: lint
	@$(PYTEST) --doctest-modules src tests

check: lint
	@$(PYTEST) --doctest-modules --fast src tests

demo: $(STAMP)
	@$(BIN)/depl0 prune digits

zoo: $(STAMP)
	@OMP_NUM_THREADS=2 $(BIN)/python -m tests.zoo $(ZOO)
	@DEPL0_ALL=1 $(PYTEST) $(shell grep -rlE --include='test_*.py' '^from tests.support.sampling|DEPL0_ALL' tests)

# Chromium opens the reports in their tests. Only root may install it, and only with Debian's tools.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; \
	then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	    >/dev/null 2>&1 || echo "chromium could not be installed: the browser's tests are skipped"; \
	else echo "chromium is not installed: the browser's tests are skipped"; fi

# A failure prints the decorator (@reproduce_failure) that repeats it.
fuzz: $(STAMP)
	@DEPL0_FUZZ=8 HYPOTHESIS_PROFILE=fuzz $(PYTEST) $(shell grep -rl --include='test_*.py' '^from hypothesis\|hostile_values' tests)

yolo: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ultralytics
	@OMP_NUM_THREADS=2 YOLO_AUTOINSTALL=false $(BIN)/python -m pytest tests/integrations/test_ultralytics.py

bench: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attach_speed.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/data_speed.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/checkpoint_cost.py

docs: $(STAMP)
	@$(BIN)/python scripts/method_figures.py
	@$(BIN)/python scripts/benchmark_figures.py
	@$(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site: open build/site/index.html"

# From a copy of the commit: no file that lies about, and no time but the commit's own, gets into it.
wheel: $(STAMP)
	@rm -rf build/source && mkdir -p build/source && git archive HEAD | tar -x -C build/source
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --wheel-dir dist build/source
	@sha256sum dist/depl0-*.whl

release-check:
	@rm -rf dist
	@$(MAKE) wheel
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build twine
	@$(BIN)/python -m build --sdist --no-isolation --outdir dist build/source >/dev/null
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/python scripts/release_check.py dist $(if $(TAG),--tag $(TAG))

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python scripts/check_prose.py
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
