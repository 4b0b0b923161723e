PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS := pytest --durations=15
PYTEST := $(BIN)/python -m $(TESTS)
MEASURED := $(BIN)/python -m coverage run
# to whatever else wants a processor
YIELDING := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
WHICH := not slow and not vllm
SIDE_BY_SIDE = -n auto --dist worksteal -m 'not realtime and $(WHICH)'
# two modules at a time: such a test mostly waits for a clock, and more of them would be late for each other
REAL_TIME = -n 2 --dist loadfile -m 'realtime and $(WHICH)' $(shell grep -lr realtime --include='test_*.py' tests)

# rooms that decide what a number means, and the tests of them that reach most of their lines for their time
ROOMS := analysis loadgen/plan traces
ROOM_TESTS := $(filter-out $(patsubst %,tests/unit/test_%.py,search_fold trace_values),$(wildcard \
	$(patsubst %,tests/unit/test_%.py,buckets cohort compare_* crosscheck diagnose expect intervals mistakes paired_* \
	plan_* queueing readings records replicas report* required reruns search_* slo tp_* trace_* units validity)))
FLOORS = $(BIN)/coverage combine -q || failed=1; \
	for room in $(ROOMS); do \
		total=$$($(BIN)/coverage report --include="$$room/*" --fail-under=95 --format=total) \
			|| { failed=1; $(BIN)/coverage report --include="$$room/*"; }; \
		echo "coverage of $$room (%, at least 95): $$total"; \
	done
comma := ,
space := $(subst ,, )

# what one worker compiles, all others read
unexport PYTHONDONTWRITEBYTECODE
# the workers have all processors
export OPENBLAS_NUM_THREADS := 1

.PHONY: setup demo test test-all untimed timed test-vllm coverage truth check clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "loadgen needs Python 3.11 or newer; set PYTHON=python3.12 or similar"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/loadgen sweep --scenario demo

# Two parts at once, both of which happen, and each of which can fail it. What judges by the clock mostly waits for it; the
# rest takes the processors only while that does, and yields them within microseconds.
test test-all: $(READY)
	@$(MAKE) --no-print-directory --keep-going --jobs=2 untimed timed WHICH='$(WHICH)'
test-all: WHICH = not vllm

# the quick tests of ROOMS, their coverage measured, with a floor for each room; then the other tests side by side
untimed:
	@rm -f .coverage .coverage.*; failed=0; \
	$(YIELDING) $(MEASURED) --source=$(subst $(space),$(comma),$(ROOMS)) -m $(TESTS) $(SIDE_BY_SIDE) $(ROOM_TESTS) || failed=1; \
	$(FLOORS); \
	$(YIELDING) $(PYTEST) $(SIDE_BY_SIDE) $(ROOM_TESTS:%=--ignore=%) || failed=1; \
	exit $$failed

# what it prints comes at its end, so that it is not mixed with the other part
timed:
	@printed=$$($(PYTEST) $(REAL_TIME) 2>&1) || failed=1; printf '%s\n' "$$printed"; exit $${failed:-0}

# a running server by LOADGEN_VLLM=URL, an environment with vLLM by LOADGEN_VLLM_VENV=DIR, or one made here
test-vllm: $(READY)
	@test -n "$$LOADGEN_VLLM$$LOADGEN_VLLM_VENV" || test -x .venv-vllm/bin/vllm || tests/vllm/install.sh .venv-vllm
	$(BIN)/python -m pytest -m vllm -s tests/vllm

# what all tests reach, child processes included: the floors of ROOMS, and one for the rest of loadgen
coverage: $(READY)
	@rm -f .coverage .coverage.*; failed=0; \
	$(MEASURED) -m $(TESTS) $(SIDE_BY_SIDE) || failed=1; \
	$(MEASURED) -m $(TESTS) $(REAL_TIME) || failed=1; \
	$(FLOORS); \
	$(BIN)/coverage report --include='loadgen/*' --omit='loadgen/plan/*' --fail-under=85 || failed=1; \
	exit $$failed

truth: $(READY)
	$(BIN)/python -m benchmarks.truth $(TRUTH)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
