# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

NATIVE := $(shell find formats indexer ingest embed -name '*.pyx' -o -name '*.hpp')
CODE := formats indexer ingest embed src/headrace examples benchmarks tests setup.py

# make demo DATA=train.tsv EVAL=held_out.tsv trains on your own Criteo files, with the torch reference beside it;
# REFERENCE= leaves the reference out (it keeps a Python dictionary of the ids: for small files).
DATA ?=
EVAL ?=
OUT ?= runs/demo
DEMO_ROWS ?= 1000000
DEMO_EVAL_ROWS ?= 50000
REFERENCE ?= --reference
OPTIONS ?=

.PHONY: demo test test-long test-ranks lint format clean bench-peers bench-ranks gpu-check gpu-wheels

demo: $(VENV)/.built
ifeq ($(DATA),)
	$(BIN)/headrace generate criteo-kaggle --out runs/data/kaggle-$(DEMO_ROWS) --rows $(DEMO_ROWS) \
	    --eval-rows $(DEMO_EVAL_ROWS) --files 4 --compression gzip --seed 1
	$(BIN)/python examples/train_dlrm.py --data runs/data/kaggle-$(DEMO_ROWS) \
	    --eval runs/data/kaggle-$(DEMO_ROWS)/eval --out $(OUT) --capacity 200000 $(OPTIONS)
else
	$(BIN)/python examples/train_dlrm.py --data '$(DATA)' $(if $(EVAL),--eval '$(EVAL)') --out $(OUT) \
	    $(REFERENCE) --epochs 2 --batch-size 256 $(OPTIONS)
endif

test: $(VENV)/.built
	$(BIN)/python -m pytest -m 'not long and not ranks' $(OPTIONS)

test-ranks: $(VENV)/.built
	$(BIN)/python -m pytest -m ranks $(OPTIONS)

test-long: $(VENV)/.built
	$(BIN)/python -m pytest --timeout 1800 $(OPTIONS)

lint: $(VENV)/.built
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/mypy examples/train_dlrm.py examples/train_ranks.py examples/train_ddp.py examples/train_lightning.py
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint $(filter %.pyx,$(NATIVE))
	$(BIN)/clang-format --dry-run --Werror $(filter %.hpp,$(NATIVE))

format: $(VENV)/.built
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/clang-format -i $(filter %.hpp,$(NATIVE))

# torch comes first, alone: with it in place, nothing else can pull another build of it.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet torch==2.13.0
	touch $@

$(VENV)/.packages: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt setuptools wheel cython
	touch $@

$(VENV)/.built: $(VENV)/.packages setup.py $(NATIVE)
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[test,lint,examples,bench,mpi]'
	touch $@

# TorchRec beside the index and the stage, in an environment of its own: a plain `pip install torchrec` takes the CUDA
# build. OPTIONS are those of benchmarks/peers_index.py, EMBED_OPTIONS those of `headrace bench embed`.
EMBED_OPTIONS ?=
PEERS := .venv-peers
PEERS_PIP := $(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet

bench-peers: $(PEERS)/.built
	$(PEERS)/bin/python -m pytest tests/ingest/adapters/test_torchrec.py
	$(PEERS)/bin/python benchmarks/peers_index.py $(OPTIONS)
	$(PEERS)/bin/headrace bench embed $(EMBED_OPTIONS) --json -

bench-ranks: $(PEERS)/.built
	PYTHONPATH=examples $(PEERS)/bin/python benchmarks/ranks.py $(OPTIONS)

$(PEERS)/.packages: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS_PIP) torch==2.13.0 numpy
	$(PEERS_PIP) --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
	$(PEERS_PIP) tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath
	$(PEERS_PIP) -c constraints.txt setuptools cython pytest pytest-timeout
	touch $@

$(PEERS)/.built: $(PEERS)/.packages setup.py $(NATIVE)
	$(PEERS_PIP) -c constraints.txt --no-build-isolation -e .
	touch $@

# All that a GPU must show, on a machine with PyTorch and nothing else of ours; see benchmarks/README.md.
gpu-check:
	$(PYTHON) benchmarks/gpu_check.py $(OPTIONS)

# Wheels for a GPU machine that cannot fetch any, whose Python is GPU_PYTHON; they travel with the tree.
GPU_PYTHON ?= 3.12
GPU_WHEELS ?= torchdata isal webdataset braceexpand click pyyaml cython pytest-timeout hypothesis sortedcontainers psutil
gpu-wheels:
	rm -rf .gpu-wheels
	$(PYTHON) -m pip --disable-pip-version-check download --quiet -c constraints.txt --no-deps --only-binary=:all: \
	    --python-version $(GPU_PYTHON) --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
	    --platform any --dest .gpu-wheels $(GPU_WHEELS)

clean:
	rm -rf build *.egg-info src/*.egg-info .gpu-wheels
	find formats indexer ingest embed -name '*.so' -delete -o -name '_*.cpp' -delete
