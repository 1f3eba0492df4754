# Each target sets itself up. Where make is missing, README.md has the same steps as plain commands.
PYTHON ?= python3
BIN := $(if $(filter Windows_NT,$(OS)),.venv/Scripts,.venv/bin)
WORK ?= work
export WORK  # recipes take it from the environment, whatever characters it has
OURS := .venv .venv-* .venv.lock build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
# As many workers as cores, four at most: each holds its own JAX.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help lab setup dev test test-matrix prove check notebooks clean

help:           ## say what there is
	@sed -n 's/^\([a-z-]*\): *[^#]*## \(.*\)/make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\): *[^#]*## \(.*\)/make \1   \2/p' Makefile

lab:            ## open the course in JupyterLab (TPU_COMPILER=0 leaves Google's TPU compiler out)
	@$(PYTHON) bootstrap.py
	@# Ctrl-C is the way to end it, no error to report; make passes a termination on to what it started, hence exec
	@exec $(BIN)/python -c 'import os, sys; from tpulab.cli import main; status = main(["lab", "--work", os.environ["WORK"]]); sys.exit(0 if status == 130 else status)'

setup:          ## only make .venv and install the course into it
	@$(PYTHON) bootstrap.py --retry

dev:            ## make .venv fit for authors: builder, tests, formatter
	@$(PYTHON) bootstrap.py dev --retry

test:           ## run the default tests (no network after set-up)
	@$(PYTHON) bootstrap.py dev
	$(PYTEST)

test-matrix:    ## run the course on every version set, installs included (network, about 25 minutes)
	@$(PYTHON) bootstrap.py dev
	$(BIN)/python -m tests.matrix

prove:          ## the long proofs: benchmarks, large compilations, and 30 loops that never wait on each version set
	@TPU_COMPILER=1 $(PYTHON) bootstrap.py dev
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.fusion
	$(BIN)/python -m benchmarks.six_billion
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m tests.matrix --only pmap-loop --runs 30

check:          ## formatter, linter, types, notebooks up to date
	@$(PYTHON) bootstrap.py dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python course/build.py --check

notebooks:      ## build the notebooks from course/chapters
	@$(PYTHON) bootstrap.py dev
	$(BIN)/python course/build.py

clean:          ## remove .venv*, caches and build outputs; never work/ or progress
	@inside=$$(find $(OURS) -name .tpulab.json 2>/dev/null | head -n 1); [ -z "$$inside" ] || \
	  { echo "make clean would remove your notebooks in $${inside%/*}: move that folder away first" >&2; exit 3; }
	@work=$${WORK#"$$PWD"/}; case "$${work#./}/" in .venv*|build/*|dist/*) \
	  echo "make clean would remove WORK=$$WORK: move your notebooks away and leave WORK out" >&2; exit 3;; esac
	rm -rf $(OURS)
	find . -name __pycache__ -type d -not -path "./$${WORK#./}/*" -prune -exec rm -rf {} +
	@printf '%s\n' "Kept: $$WORK/ (your notebooks) and your progress, which lies in \$$TPULAB_HOME or" \
	  '  Linux ~/.local/share/tpulab   macOS ~/Library/Application Support/tpulab   Windows %LOCALAPPDATA%\tpulab'
