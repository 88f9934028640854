# Two commands do it all on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
TORCH := torch==2.13.0
CORES := $(shell nproc 2>/dev/null || echo 1)
SELDOM := '/tests?/|/transformers/models/|/diffusers/(modular_)?pipelines/|/(phonenumbers|pip|sympy)/'
export DPSYNTH_HOME ?= $(CURDIR)/.dpsynth
# Hundreds of processes import the same modules: they keep what they compiled, wherever an environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test lint style imports types pages docs scan up clean
help:           ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

setup: $(VENV)/.installed  ## install everything into .venv, from pinned versions

# torch comes first and by itself: its wheel fits the machine (CPU or CUDA), everything else is the same everywhere. The
# locks name every package, so nothing is resolved (a test checks them), and a process for each core unpacks forty
# packages at a time. Modules are compiled at the end, by all cores: pip would use one. What is seldom imported is
# compiled then; what does not compile is a template, and no matter.
$(VENV)/.installed: requirements/platform.lock requirements/models.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11; name one that is: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	grep -hv '^#' requirements/platform.lock requirements/models.lock | xargs -P $(CORES) -n 40 $(INSTALL) --no-deps
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -qq -j 0 -x $(SELDOM) $(VENV)/lib dpsynth dpsynth_platform assets resources sensors || true
	@touch $@

demo: setup     ## the whole line on demonstration data, ending in a published, verified release
	@$(BIN)/dpsynth demo

# Test files run side by side, a process for each core and one more, since many wait for processes of their own (four at
# most: each may hold gigabytes), the longest first (tests/conftest.py), each file whole in one process. One thread a process: more
# would only wait for the others' cores.
# They write to memory where it has room for them (about a gigabyte), unless TMPDIR says where: every
# commit of a database waits for a disk.
SIDE_BY_SIDE := $(shell n=$(CORES); echo $$((n < 3 ? n + 1 : 4)))
MEMORY := $(if $(TMPDIR),,$(shell [ "$$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -ge 4096 ] 2>/dev/null && echo /dev/shm))
test: setup     ## every test
	@$(if $(MEMORY),TMPDIR=$(MEMORY)) OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(SIDE_BY_SIDE) --dist loadfile --no-loadscope-reorder

lint: style imports types pages  ## ruff, the layers of imports, mypy and the pages

style: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

imports: setup
	$(BIN)/lint-imports --no-logo

types: setup
	$(BIN)/mypy

# Strict: a link or anchor that leads nowhere, or a page that the index of the site lacks, is an error. Takes ten seconds.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
pages: setup
	@site=$$(mktemp -d) && { $(MKDOCS) --site-dir $$site; status=$$?; rm -rf $$site; exit $$status; }

docs: setup     ## the pages of docs/ as a website in site/; needs no network
	@$(MKDOCS)

# Wants the network: known faults are looked up at PyPI's advisory service, and of images where Trivy is installed.
# What cannot be looked up is a failure, not a pass.
scan:           ## known vulnerabilities of everything that is pinned, and of images and manifests (by trivy)
	$(PYTHON) -m venv .venv-scan
	.venv-scan/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	echo $(TORCH) > .venv-scan/torch.lock
	.venv-scan/bin/pip-audit --strict --no-deps --disable-pip --requirement .venv-scan/torch.lock $(foreach lock,platform models kubernetes deploy aws google,--requirement requirements/$(lock).lock)
	.venv-scan/bin/pip-audit --strict --no-deps --disable-pip --requirement requirements/flower.lock
	@command -v trivy >/dev/null || { echo "trivy is not installed: images and manifests were not looked at" >&2; exit 1; }
	trivy config --exit-code 1 deploy && trivy image --exit-code 1 dpsynth:0.1.0 && trivy image --exit-code 1 dpsynth-flower:0.1.0

up: setup       ## Dagster UI and daemon at http://127.0.0.1:3000
	@$(BIN)/dpsynth up

clean:          ## remove the environment; keeps .dpsynth (data, ledger, keys)
	rm -rf $(VENV) .venv-scan
