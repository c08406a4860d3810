# The whole developer interface. `make demo` and `make test` set everything up on a machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export OMP_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE # or each of the many processes that the tests start compiles all modules again

.PHONY: demo test lint type format bench slow clean

demo: $(READY)
	@$(BIN)/concordfl compare experiments/demo.toml --algorithms local,fedavg,fedavg-ft,ifca,fedem,fedconceptem

test: lint type
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal -m "not slow"
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

lint: $(DEV_READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: $(DEV_READY)
	@$(BIN)/mypy

format: $(DEV_READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(DEV_READY)
	@$(BIN)/concordfl bench speed

slow: $(DEV_READY)
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) runs .coverage .coverage.* .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "concordfl needs Python 3.11 or newer, got none called $(PYTHON): install it, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "concordfl needs Python 3.11 or newer, got `$(PYTHON) --version`: install it, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "concordfl needs Python's venv module, got a $(PYTHON) without it: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (once; takes a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable .
	@touch $@

$(DEV_READY): $(READY)
	@echo "Adding to $(VENV) what development and the optional parts need (once; takes a few minutes)"
	@$(PIP_INSTALL) --editable '.[dev,encoders,export,flower,plot,ray,track]'
	@touch $@
