# Every target sets up what it needs by itself: Python 3.11+ with pip, and make, are enough.

PY := .venv/bin/python
UV := .tools/bin/uv
# Most of a test is waiting for processes and timers: 4 at once for every core, up to 8.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 1 ? 8 : 4)))
ARGS ?=
# The order of the tests; the same seed gives the same order.
ifndef SEED
SEED := $(shell awk 'BEGIN { srand(); print int(rand() * 1000000) }')
endif
FETCH := $(PY) -m tests.support.tools.fetching
PARALLEL := -n $(JOBS) --dist worksteal -m "not long"
# Rows of a table of mistakes are independent of each other, unlike the tests that kill things.
MUTATIONS = $(PY) -m pytest -q -n $(JOBS) --dist worksteal -m mutation $(ARGS) \
	$(if $(findstring tests/,$(ARGS)),,$$(find tests -name 'test_*_mistakes.py'))

# Whether the caller has named a Python: then .venv is to be of that one, and is made again if it is not.
NAMED := $(filter command environment,$(firstword $(origin PYTHON)))

# The editable install points to this folder, so a copied .venv must be set up again: hence the folder in the name.
FOLDER := $(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
ifneq ($(NAMED),)
SYNCED := .venv/.synced-$(FOLDER)-$(shell printf %s "$(PYTHON)" | cksum | cut -d' ' -f1)
else
SYNCED := $(firstword $(wildcard .venv/.synced-$(FOLDER)*) .venv/.synced-$(FOLDER))
endif

# The first Python on the PATH that is new enough and has pip, which that of an active environment may lack; else the
# first that is new enough; empty when there is none.
PYTHON ?= $(shell IFS=:; found=; for folder in $$PATH; do \
	for name in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$folder/$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	found=$${found:-$$folder/$$name}; \
	"$$folder/$$name" -c 'import pip' >/dev/null 2>&1 && { echo "$$folder/$$name"; exit; }; done; done; echo "$$found")

# What the caller's shell has set for other projects must not reach this one.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_REQUIRE_VIRTUALENV
export UV_PROJECT_ENVIRONMENT := .venv
export UV_PYTHON_DOWNLOADS := never
# A home that can't be written to (or none at all) is no reason to fail.
ifneq ($(shell mkdir -p "$$HOME/.cache" 2>/dev/null && test -w "$$HOME/.cache" && echo yes),yes)
export UV_CACHE_DIR ?= $(CURDIR)/.tools/cache
endif

# Flush the installed files to the disk first; otherwise a test's fsync waits for all of them.
FLUSH_DISK := sync -f . 2>/dev/null || true

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test stress check lint types imports docs-check bench chaos mutations docs fetched tools dashboards keda proto fmt hooks clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(SYNCED) ## Install everything into .venv (the other targets do this by themselves)
	@echo "Ready. Next: . .venv/bin/activate && holdfast dev examples/support_desk.py:app   (docs/start.md)"

demo: $(SYNCED) ## See the whole system at work, then a summary (KEEP=1 stays up)
	@$(PY) -m holdfast demo $(if $(KEEP),--keep) $(ARGS)

test: fetched ## Run all tests but the long ones (ARGS='-k name' picks some)
	@echo "Random order $(SEED): SEED=$(SEED) repeats it."
	@$(PY) -m pytest -q --seed $(SEED) --hypothesis-seed=$(SEED) $(PARALLEL) $(ARGS)

stress: fetched ## Run the tests ROUNDS times in random orders beside BUSY processes, and list all that failed
	@$(PY) -m tests.support.stress --rounds $(or $(ROUNDS),5) --busy $(or $(BUSY),2) \
		$(PARALLEL) $(ARGS)

check: lint types imports docs-check test ## What CI runs: lint, types, import rules, docs, tests

lint: $(SYNCED) ## Check the code's form
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(SYNCED) ## Check the types
	$(PY) -m basedpyright

imports: $(SYNCED) ## Check who imports whom
	@$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-cache --no-logo

docs-check: $(SYNCED) ## Check that the generated pages are current
	$(PY) -m holdfast.cli.reference --check

bench: $(SYNCED) ## Measure speed and memory beside raw redis-py
	@$(PY) -m bench $(ARGS)

# Pytest ends with 5 where ARGS picks tests of the other half only.
chaos: $(SYNCED) ## Run the tests that kill things, the long ones too, and the mutations
	@$(PY) -m pytest -q -n 0 -m "(chaos or long) and not mutation" $(ARGS); first=$$?; \
	test $$first -eq 0 -o $$first -eq 5 || exit $$first; \
	$(MUTATIONS); second=$$?; test $$second -eq 0 -o $$second -eq 5 -a $$first -eq 0

mutations: $(SYNCED) ## Put each known mistake back: its test must fail (ARGS='-k name', JOBS=2)
	@$(MUTATIONS)

docs: $(SYNCED) ## Write the generated pages of docs/reference
	@$(PY) -m holdfast.cli.reference

# What can't be fetched here is no reason not to test the rest: the tests end with what they left out, and why.
fetched: $(SYNCED)
	@$(FETCH) || true
	@$(FLUSH_DISK)

tools: $(SYNCED) ## Fetch what some tests need beside .venv (make test does this by itself)
	@$(FETCH)

dashboards: $(SYNCED) ## Write the dashboards of deploy/grafana
	@$(PY) -B deploy/grafana/build.py

keda: $(SYNCED) ## Write the ScaledObjects of deploy/keda, from the chart
	@$(PY) -B deploy/keda/build.py

proto: $(SYNCED) ## Generate the gRPC code from the proto files
	@$(PY) -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src --grpc_python_out=src \
		src/holdfast/hosts/proto/agent_host.proto src/holdfast/scaling/proto/externalscaler.proto

fmt: $(SYNCED) ## Format the code and fix what can be fixed
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .

hooks: $(SYNCED) ## Check every commit before it is made
	@$(PY) -m pre_commit install

clean: ## Remove what the targets above have set up (not .holdfast, where data is)
	rm -rf .venv .venv-rustic .venv-checkov .venv-image .tools .stress .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov dist
	find src examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(SYNCED): pyproject.toml uv.lock | $(UV)
	@echo "Setting up .venv (the first time takes about 20 seconds) ..."
	@rm -f .venv/.synced-*
	@$(UV) sync --extra dev --locked -q $(if $(NAMED),--python "$(PYTHON)",$(if $(wildcard $(PY)),,--python "$(PYTHON)"))
	@$(FLUSH_DISK)
	@touch $@

$(UV):
	@test -n "$(PYTHON)" || { echo "Holdfast needs Python 3.11 or newer: install one and put it on the PATH," \
		"or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is no Python that works," \
		"or is older than 3.11: name another one, make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -m pip --version >/dev/null 2>&1 || { echo "$(PYTHON) has no pip: install it" \
		"(Debian and Ubuntu: apt install python3-pip; elsewhere: $(PYTHON) -m ensurepip)" >&2; exit 1; }
	@PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
		"$(PYTHON)" -m pip install -q --upgrade --target .tools uv
