# Two commands are enough: `make book` and `make test`. `make help` lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
PY     := $(VENV)/bin/python
BOOK   := $(VENV)/bin/jupyter-book build . -W -n --keep-going --quiet
RECORDS ?= chapters/measured

.DEFAULT_GOAL := help
.PHONY: help book html gettext lab notebooks test quick gpu clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 12

book: html  ## build the book and open it (needs neither torch nor a GPU)
	@$(PY) tools/serve.py _build/html

html: $(VENV)/book.stamp  ## build the book into _build/html
	@$(BOOK)

gettext: $(VENV)/book.stamp  ## extract every page's text for translators into _build/translation
	@$(BOOK) --builder custom --custom-builder gettext --path-output _build/translation

lab: $(VENV)/full.stamp  ## open the notebooks in JupyterLab; with a GPU, fill its columns first
	@$(PY) tools/columns.py --records $(RECORDS)
	@$(PY) -m jupyterlab chapters

notebooks: $(VENV)/full.stamp  ## run every notebook afresh on the CPU and store its outputs
	@KVLIB_DEVICE=cpu $(PY) tools/notebooks.py chapters/*/*.ipynb

test: $(VENV)/test.stamp  ## everything CI checks
	@$(PY) tools/check.py

quick: $(VENV)/test.stamp  ## the inner loop: style and the tests without model and browser
	@$(PY) tools/check.py --quick

gpu:  ## tests, measurements and notebooks on CUDA, with PYTHON=… as it is; records go to RECORDS=…
	@$(PYTHON) tools/gpu.py --records $(RECORDS)

clean:  ## remove the built book and the virtual environment
	rm -rf _build $(VENV)

$(VENV)/created.stamp:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version'
	@$(PYTHON) -m venv $(VENV) && touch $@

$(VENV)/book.stamp: $(VENV)/created.stamp requirements-book.txt pyproject.toml
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-book.txt && touch $@

$(VENV)/full.stamp: $(VENV)/created.stamp requirements.txt pyproject.toml
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt && touch $@ $(VENV)/book.stamp

$(VENV)/test.stamp: $(VENV)/full.stamp requirements-test.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-test.txt && touch $@
