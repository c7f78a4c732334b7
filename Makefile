# Needs GNU make 3.81 or newer and Python 3.11 or newer; everything else goes into .venv.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup train test quick attack cluster chaos soak lint clean FORCE

VENV := .venv
BIN := $(VENV)/bin

# To be set from outside: make setup PYTHON=/path/to/python3.12, make train ARGS="--seconds 60"
PYTHON ?=
ARGS ?=
EXTRAS ?= dev,compress,sb3,video,mujoco,box2d,multiagent,wandb
# Tests at a time: one more than a small machine has cores, because tests of Ray mostly wait.
JOBS ?= 3
# More pip options for torch alone, for example where to find a build without CUDA.
TORCH_OPTIONS ?=

# 3.11 first: it is what constraints.txt was resolved with.
PYTHONS = $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3)
USABLE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
SELECTION = -m 'not cluster'
# mypy runs beside the tests: without its cache it takes half a minute. Its words come last, whole.
CHECK = $(BIN)/python -m ruff check . || exit 1; \
	$(BIN)/python -m mypy >$(VENV)/mypy.log 2>&1 & types=$$!; \
	$(PYTEST) $(SELECTION) $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/mypy.log; exit $$((tests | types))
# Of pip's chatter keep the large downloads, warnings and errors.
QUIETER = awk '/^ +Downloading .* MB\)/ { print "    " $$2, $$3, $$4; fflush(); next } \
	/^Installing collected packages:/ { print "    unpacking", NF - 3, "packages"; fflush(); next } \
	/^(Requirement already|Looking in|Collecting|Processing|Obtaining|Using|Building wheels|Successfully|Attempting)/ { next } \
	/^ +(Downloading|Using cached|Preparing|Getting|Installing|Checking|Building|Created|Stored|Attempting|Found|Uninstalling|Successfully)/ { next } \
	/━|^WARNING: Location/ { next } { print; fflush() }'

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  ARGS="..." is passed on by train, test, quick, attack, cluster, chaos, soak and bench-%; PYTHON=... chooses the interpreter for setup.'

setup: $(VENV)/.ready  ## build .venv with everything pinned in constraints.txt (once; minutes)

train: setup  ## train Ape-X DQN on CartPole; ARGS="--seconds 60" and the like are passed on
	@$(BIN)/shoal train cartpole_apex_dqn $(ARGS)

test: setup  ## the one check: lint, types, tests
	@$(CHECK)

quick: setup  ## lint, types, and the quick tests only (about 90 seconds)
	@$(CHECK)
quick: SELECTION = -m 'not slow and not stress and not learning and not faults and not attack and not cluster'

attack: setup  ## only what attacks and kills real runs (minutes; part of test)
	@$(PYTEST) -m 'attack or faults' $(ARGS)

cluster: setup  ## only what needs several nodes in namespaces (minutes, as root on Linux; not part of test)
	@$(BIN)/python -m pytest -m cluster -rs $(ARGS)

chaos: setup  ## a run on three nodes that are killed, stopped and cut off; ARGS="--minutes 10 --seed 1"
	@$(BIN)/python benchmarks/chaos.py $(ARGS)

soak: setup  ## an hour of one run on three nodes: what grows? ARGS="--minutes 15"
	@$(BIN)/python benchmarks/soak.py $(ARGS)

lint: setup  ## ruff and mypy only
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy

bench-%: $(VENV)/.ready-bench FORCE  ## run benchmarks/%.py, side by side with its peers
	@$(BIN)/python benchmarks/$*.py $(ARGS)

clean:  ## remove caches and build output; keeps .venv and runs/
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	@find . -path ./$(VENV) -prune -o -path ./runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f $(VENV)/.ready $(VENV)/.ready-bench

# A stamp, so that a second `make setup` does nothing. It is written last: an interrupted set-up starts again.
$(VENV)/.ready: pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(USABLE)' 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=; for python in $(PYTHONS); do \
	    if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then found="$$python"; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo 'Shoal needs Python 3.11 or newer with venv; none of these is:' $(PYTHONS) >&2; \
	    echo 'Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.12)' >&2; \
	    echo 'or name one: make setup PYTHON=/path/to/python3.12' >&2; \
	    exit 1; \
	  fi; \
	  echo "==> $(VENV) with $$("$$found" -V)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo '==> torch'
	@$(PIP) install --no-deps -c constraints.txt $(TORCH_OPTIONS) torch
	@echo '==> Shoal and the other packages'
	@set -o pipefail; $(PIP) install -c constraints.txt -e '.[$(EXTRAS)]' 2>&1 | $(QUIETER)
	@if [ -f src/shoal/replay/precompile.py ]; then \
	  echo '==> compiling the kernels of replay and path finding'; $(BIN)/python -m shoal.replay.precompile; \
	  $(BIN)/python -c 'import shoal.envs.pathfinding'; \
	fi
	@touch $@
	@echo '==> ready'

$(VENV)/.ready-bench: $(VENV)/.ready
	@echo '==> the packages to compare with'
	@set -o pipefail; $(PIP) install -c constraints.txt -e '.[bench]' 2>&1 | $(QUIETER)
	@touch $@

FORCE:
