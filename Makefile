# make demo   the main job on the bundled digits        make test    the whole suite
PY = .venv/bin/python

.PHONY: install demo test test-slow lowest verify lint bench results docs gallery tutorials
install:
	@scripts/bootstrap

demo: install
	@MONGE_RUNS=runs/demo $(PY) examples/demo.py

test: install
	@OMP_NUM_THREADS=1 $(PY) -m pytest

test-slow: install
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m slow --timeout 1800

lowest:  # a share of the suite with the lowest declared versions of the dependencies
	@scripts/lowest

verify: install
	@OMP_NUM_THREADS=1 $(PY) -m monge verify --all
	@OMP_NUM_THREADS=1 $(PY) -m monge verify --mutants

docs: install  # build/site; open its index.html, no server needed
	@$(PY) -c 'import latex2mathml, material, mkdocstrings' 2>/dev/null || \
	  .venv/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q --clean --strict

gallery: install  # docs/gallery: a picture of a short run of each model that has none yet
	@OMP_NUM_THREADS=1 $(PY) scripts/gallery.py

tutorials: install  # docs/tutorials: run each in full, and keep what it prints and draws for its page
	@OMP_NUM_THREADS=1 $(PY) scripts/tutorials.py

results: install  # the tables of README.md and docs/benchmarks.md, from results/
	@$(PY) -m benchmarks.results

lint: install
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

bench: install  # ratios against peers, each in an environment of its own (scripts/bench-env)
	@$(PY) -m benchmarks
