# Everything a developer or CI does. Each target sets up .venv by itself when it is out of date.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
LIGHT := .venv/light
# axe-core and TypeScript, which check the page; tests that need them skip where npm is not there.
TOOLS := tests/serve/node_modules/.package-lock.json
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
    --constraint constraints.txt
# Else every command that a test starts compiles the package again, and pytest its tests.
export PYTHONDONTWRITEBYTECODE :=
# A file's tests stay together, as they share what it trains.
TWO_WORKERS := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-bounds check format docs bench attack clean

demo: $(LIGHT)            ## train and evaluate on the bundled data set, label a few texts
	$(BIN)/longtail demo

test: $(READY) $(TOOLS)   ## the tests but for the slow ones, in about 7 minutes
	$(BIN)/python -m pytest $(TWO_WORKERS)

test-all: $(READY) $(TOOLS) ## all tests, with studies, large presets and long fault tests
	$(BIN)/python -m pytest $(TWO_WORKERS) -m ""

test-bounds: $(READY)     ## what models promise, with compiled code that checks every index
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=build/boundscheck $(BIN)/python -m pytest \
	    --numprocesses 2 --dist loadgroup tests/test_model_contract.py tests/search tests/models/linear \
	    -k "not preset and not same_seed"  # which reach no other code

check: $(READY) $(TOOLS)  ## style, types and layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	! test -e $(TOOLS) || tests/serve/node_modules/.bin/tsc --project tests/serve

format: $(READY)          ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)            ## the documentation, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx --fresh-env --nitpicky --fail-on-warning --keep-going --quiet \
	    docs docs/_build/html

bench: $(READY)           ## ours and the peers, same rows, one run (DATA=folder of data sets)
	$(BIN)/python -m bench $(if $(DATA),--data $(DATA)) $(ARGS)

attack: $(READY)          ## try to break every promise of docs/safety.md (MINUTES=2)
	$(BIN)/python -m attack --minutes $(or $(MINUTES),2) $(ARGS)

$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable .  # Python compiles what is imported: half the time
	touch $@

$(READY): $(LIGHT)
	$(INSTALL) --editable '.[deep,serve,ray,cloud,dev,docs]'
	-$(BIN)/python -W ignore -m compileall -qq -j 0 .venv/lib  # as pip would, but on all cores
	touch $@

$(TOOLS): tests/serve/package-lock.json
	npm ci --prefix tests/serve --silent && touch $@ || echo "The page is checked less: npm failed."

clean:                    ## remove what the other targets made
	rm -rf .venv build dist docs/_build *.egg-info tests/serve/node_modules
