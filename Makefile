# Everything a newcomer needs: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test obtain test-fast lint bench fuzz clean

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing outlast and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[web,dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/outlast demo

# What the machine lacks (Go, the control plane, kubectl, Chromium) is obtained first, where that is possible;
# the last line says what had to be left out and how to get it.
# Most of a run waits (for leases, proofs, processes), so workers outnumber cores; a file stays on one worker.
WORKERS ?= 4

test: $(STAMP)
	@$(BIN)/python -m tests.obtain
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

obtain: $(STAMP)
	@$(BIN)/python -m tests.obtain

test-fast: $(STAMP)
	@$(BIN)/python -m pytest -n 2 -m 'not controlplane and not browser and not long' tests/unit tests/sim

lint: $(STAMP)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# Every parser under coverage guidance, SECONDS each; what it finds is kept in build/fuzz.
SECONDS ?= 20

fuzz: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[web,dev,fuzz]'
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

clean:
	rm -rf $(VENV) build dist
