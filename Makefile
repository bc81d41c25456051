# Two commands: `make demo` sets up and optimises a real kernel, `make test` sets up and passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The CPU build where pip finds one; a machine with a GPU sets TORCH to the build that fits its driver.
TORCH ?= torch==2.13.0

.PHONY: demo test lint types unit wheel bench clean

demo: $(READY)
	@$(BIN)/tilewright optimize examples/rms_norm.py --rounds 6

test: lint types unit wheel

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

unit: $(READY)
	@$(BIN)/python -m pytest -q --ignore=tests/wheel

# The built wheel, in an environment of its own that sees the dependencies but not the checkout: a wheel can
# lack a folder without a word. (A plain path in a .pth file does not run the .pth files found there, so the
# editable install stays out.)
wheel: $(READY)
	@rm -rf build/wheel dist && mkdir -p build
	@$(BIN)/python -m build --wheel --outdir dist . > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@$(BIN)/python -m venv --without-pip build/wheel
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> $$(build/wheel/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth
	@$(BIN)/python -m pip --python build/wheel/bin/python install --quiet --no-deps --no-index dist/*.whl
	@cd build && wheel/bin/python -m pytest -q -c ../pyproject.toml --rootdir=.. -p no:cacheprovider ../tests/wheel

bench: $(READY)
	@$(BIN)/python benchmarks/overhead.py

$(READY): pyproject.toml
	@$(PYTHON) -c "import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f'Tilewright needs Python 3.11 or newer, found {v.major}.{v.minor}: run make PYTHON=python3.12')"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (once; about two minutes, most of it torch) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist
