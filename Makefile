# make demo   the main job on the bundled digits        make test    the whole suite
PY = .venv/bin/python

.PHONY: install demo test test-slow verify lint bench
install:
	@scripts/bootstrap

demo: install
	@MONGE_RUNS=runs/demo $(PY) examples/demo.py

test: install
	@OMP_NUM_THREADS=1 $(PY) -m pytest

test-slow: install
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m slow --timeout 1800

verify: install
	@OMP_NUM_THREADS=1 $(PY) -m monge verify --all
	@OMP_NUM_THREADS=1 $(PY) -m monge verify --mutants

lint: install
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

bench: install
	@$(PY) -m benchmarks.trainer
	@$(PY) -m benchmarks.sampling
	@$(PY) -m benchmarks.pixelcnn
	@$(PY) -m benchmarks.wavenet
	@$(PY) -m benchmarks.attention
	@$(PY) -m benchmarks.gpt
	@$(PY) -m benchmarks.peers
	@$(PY) -m benchmarks.transport
	@$(PY) -m benchmarks.flows
	@$(PY) -m benchmarks.vae
	@$(PY) -m benchmarks.gan
	@$(PY) -m benchmarks.diffusion
	@$(PY) -m benchmarks.beam
	@$(PY) -m benchmarks.tokens
	@$(PY) -m benchmarks.serving
