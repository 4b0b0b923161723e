PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest --durations=15

.PHONY: setup demo test test-all test-vllm truth check clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "loadgen needs Python 3.11 or newer; set PYTHON=python3.12 or similar"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/loadgen sweep --scenario demo

# all but the real-time tests side by side, then those one after another; both happen, and either can fail it
test test-all: $(READY)
	@failed=0; \
	$(PYTEST) -n auto --dist worksteal -m 'not realtime and $(WHICH)' || failed=1; \
	$(PYTEST) -m 'realtime and $(WHICH)' || failed=1; \
	exit $$failed
test: WHICH = not slow and not vllm
test-all: WHICH = not vllm

# a running server by LOADGEN_VLLM=URL, an environment with vLLM by LOADGEN_VLLM_VENV=DIR, or one made here
test-vllm: $(READY)
	@test -n "$$LOADGEN_VLLM$$LOADGEN_VLLM_VENV" || test -x .venv-vllm/bin/vllm || tests/vllm/install.sh .venv-vllm
	$(BIN)/python -m pytest -m vllm -s tests/vllm

truth: $(READY)
	$(BIN)/python -m benchmarks.truth $(TRUTH)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
