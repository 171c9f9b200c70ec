# make train    train with a population of 10240; more options in ARGS="..."
# make test     run the tests; options for pytest in ARGS="..."
# make test-wheel   build the sdist and from it the wheel, install it without a compiler, try it
# make torture  break runs on purpose, for an hour or so; ARGS="--help" lists the parts
# make mutants  plant faults one at a time and see that tests fail; ARGS="--help" lists the options
# make test-arm64   compare the arm64 kernels under qemu
# make verify-metal   on a Mac: check the metal engine on the GPU, write metal-report.txt;
#               ARGS="look trial" does two of its pieces, at most ten minutes each
# make verify-cuda   with an NVIDIA GPU: check the cuda engine on it, write cuda-report.txt; likewise
# make time-cuda   with an NVIDIA GPU: time kernels; ARGS="paper layer" those of such a name
# make gpu-bundle   write build/eggroll-gpu.tar.xz for a machine with an NVIDIA GPU and no network
# make notebook   run examples/tour.ipynb again and keep its outputs
# make bench    time whole steps over growing populations; more options in ARGS="..."
# make check    lint, formatting, types and the measure of the house
# make docs     build the documentation site into build/site; every link and anchor is checked
# make build    create .venv, install the dependencies, build the extension
# make clean    remove what was built, but keep .venv
#
# A fresh machine needs Python 3.11 or newer with its venv module and C headers, a C++20 compiler and
# a network connection; all else goes into .venv.

PYTHON ?= python3
ARGS ?=
# Warnings in our C++ are errors, except for those who only want to train.
WERROR ?= ON

VENV ?= .venv
PY := $(VENV)/bin/python
DEPS := $(VENV)/.deps-installed
BUILT := $(VENV)/.extension-built
# The folder of the mlx/ to build against, where that is not the environment's; and of the build, so
# that no environment finds what another configured.
MLX ?=
BUILD_DIR := $(if $(filter-out .venv,$(VENV)),build/$(patsubst .%,%,$(notdir $(VENV)))-{state}-{wheel_tag})
BUILD_SETTINGS = --config-settings=cmake.define.EGG_WERROR=$(WERROR) \
  $(if $(MLX),--config-settings=cmake.define.EGG_MLX=$(abspath $(MLX))) \
  $(if $(BUILD_DIR),'--config-settings=build-dir=$(BUILD_DIR)')
DOCS := $(VENV)/.docs-installed
SOURCES := $(wildcard CMakeLists.txt extensions/* extensions/*/* extensions/*/*/* extensions/*/*/*/*) eggroll/__init__.py
MODULES := $(sort $(wildcard eggroll/*.py eggroll/*/*.py eggroll/*/*/*.py))
NAMES := $(VENV)/.modules
CXX_SOURCES = $(shell find extensions tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.metal')
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: build train test test-wheel torture mutants test-arm64 verify-metal verify-cuda cuda-environment time-cuda gpu-bundle notebook bench check docs clean

build: $(BUILT)

train: WERROR := OFF
train: $(BUILT)
	$(PY) -m eggroll.train $(ARGS)

# Modules stay compiled, whatever the environment says, as tests start hundreds of processes.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(BUILT)
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Takes minutes: it builds in isolation. ARGS=FILE.whl tries that one instead.
test-wheel: $(DEPS)
	$(PY) tests/try_wheel.py $(ARGS)

# Kills, full disks, hostile files and long runs; ARGS="--out records/DATE-torture" keeps the counts.
torture: $(BUILT)
	PYTHONPATH=tests $(PY) -m faults.torture $(ARGS)

# Nightly: ARGS="--count 200 --out records/DATE-mutants" keeps the record.
mutants: $(BUILT)
	PYTHONPATH=tests $(PY) -m mutants.run $(ARGS)

# Needs qemu-user and g++-aarch64-linux-gnu; minutes, mostly the compiler's.
test-arm64: $(BUILT)
	EGGROLL_REQUIRE=arm64 $(PY) -m pytest -k arm64 tests/test_native.py tests/test_float_kernels_native.py $(ARGS)

# For the owner of a Mac: trial, every kernel, engine tests and benchmarks, into metal-report.txt.
# Pieces: look trial kernels tests runs bench report; one goes on where it was when its time was over.
verify-metal: $(BUILT)
	PYTHONPATH=tests $(PY) -m gpu.report metal $(ARGS)

# For the owner of an NVIDIA GPU: the same, into cuda-report.txt. CUDA=cuda12 for older drivers.
# In an environment of its own, as MLX for CUDA takes the place of MLX for the CPU.
CUDA ?= cuda
verify-cuda: cuda-environment
	PYTHONPATH=tests .venv-cuda/bin/python -m gpu.report cuda $(ARGS)

time-cuda: cuda-environment
	PYTHONPATH=tests .venv-cuda/bin/python -m gpu.driver time $(ARGS)

cuda-environment:
	@command -v nvidia-smi >/dev/null || \
	  { echo "this needs an NVIDIA GPU, and nvidia-smi, which comes with its driver, is missing." >&2; exit 1; }
	$(MAKE) VENV=.venv-cuda .venv-cuda/.$(CUDA)-installed
	$(MAKE) VENV=.venv-cuda MLX=.venv-cuda/mlx-cpu build

# Wheels for PYTHON, whose version the other machine must have; the extension is that of VENV.
gpu-bundle: $(BUILT)
	PYTHONPATH=tests $(PY) -m gpu.bundle $(ARGS)

bench: $(BUILT)
	$(PY) -m eggroll.bench $(ARGS)

# The outputs are stored with the notebook; its pictures keep it below 400 kB.
notebook: $(BUILT)
	$(PY) -m pip install --quiet nbclient ipykernel
	$(PY) -c 'import nbclient, nbformat; n = nbformat.read("examples/tour.ipynb", 4); nbclient.NotebookClient(n, timeout=1200, record_timing=False, resources={"metadata": {"path": "examples"}}).execute(); nbformat.write(n, "examples/tour.ipynb")'

check: $(DEPS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict eggroll
	@$(PY) tests/house.py
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
	@echo "The site is build/site/index.html; '$(VENV)/bin/mkdocs serve' shows it while you write."

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis $(BUILT)

# What a machine may lack is looked for first, so that one sentence says so.
$(DEPS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "eggroll needs Python 3.11 or newer, and '$(PYTHON)' is missing or older: name another one, as in 'make PYTHON=python3.12'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' lacks the venv module: install it (Debian and Ubuntu: 'apt install python3-venv') and run make again." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || \
	  { echo "'$(PYTHON)' lacks its C headers: install them (Debian and Ubuntu: 'apt install python3-dev') and run make again." >&2; exit 1; }
	@$${CXX:-c++} --version >/dev/null 2>&1 || \
	  { echo "No C++ compiler answers to '$${CXX:-c++}': install one (Debian and Ubuntu: 'apt install g++', macOS: 'xcode-select --install') or set CXX, and run make again." >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing dependencies into $(VENV); the first time takes some minutes."
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); q = p["project"]; print(*p["build-system"]["requires"], *q["dependencies"], *q["optional-dependencies"]["dev"], sep="\n")' >$(VENV)/requirements.txt
	@$(PY) -m pip install --quiet -r $(VENV)/requirements.txt
	@touch $@

# MLX for CUDA, and beside it a folder with mlx-cpu for the build.
$(VENV)/.cuda-installed $(VENV)/.cuda12-installed: $(VENV)/.%-installed: $(DEPS)
	@echo "Installing MLX for CUDA into $(VENV)."
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); pins = [r.partition(";")[0].strip() for r in p["build-system"]["requires"] if r.startswith("mlx[cpu]")]; print(*(pin.replace("mlx[cpu]", name) for pin in pins for name in ("mlx", "mlx-cpu")), sep="\n")' >$(VENV)/requirements-mlx-cpu.txt
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*p["project"]["optional-dependencies"]["$*"], sep="\n")' >$(VENV)/requirements-cuda.txt
	@$(PY) -m pip install --quiet --no-deps --upgrade --target $(VENV)/mlx-cpu -r $(VENV)/requirements-mlx-cpu.txt
	@$(PY) -m pip uninstall --quiet --yes mlx-cpu mlx-cuda-12 mlx-cuda-13
	@$(PY) -m pip install --quiet -r $(VENV)/requirements-cuda.txt
	@rm -f $(VENV)/.cuda-installed $(VENV)/.cuda12-installed
	@touch $@

$(DOCS): pyproject.toml $(DEPS)
	@$(PY) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*p["project"]["optional-dependencies"]["docs"], sep="\n")' >$(VENV)/requirements-docs.txt
	@$(PY) -m pip install --quiet -r $(VENV)/requirements-docs.txt
	@touch $@

# An editable install lists the modules, so one that came, went or moved needs another.
$(NAMES): FORCE | $(DEPS)
	@echo $(MODULES) | cmp -s - $@ || echo $(MODULES) >$@

FORCE:

# The stamp bears the time of the start: a source saved during the build is built next time.
$(BUILT): $(DEPS) $(NAMES) $(SOURCES)
	@echo "Building the extension."
	@touch $@.new
	@$(PY) -m pip install --quiet --no-build-isolation --no-deps $(BUILD_SETTINGS) --editable .
	@mv $@.new $@
