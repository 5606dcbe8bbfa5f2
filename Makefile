# make serve   everything from nothing: environment, build, default model, server on http://127.0.0.1:8080
# make test    the same set-up, then the tests          make check   format, lint, types, stubs, layers
# make build   the native modules, after a change in _native; only what changed is compiled
# make bench-peers   llama.cpp's own tools from the same source with the same flags, for bench/ to compare with
# make test-clients   a real server checked with the clients people use; CLIENTS="litellm langchain" for some
# make sanitize   the native tests with our C++ under AddressSanitizer, then ThreadSanitizer
# make wheel   sdist and wheel into dist/                make clean   removes what was built, keeps .venv and vendor
#
# CMAKE_ARGS reaches llama.cpp: CMAKE_ARGS="-DGGML_CUDA=ON" make build
# SERVE_ARGS reaches the server: make serve SERVE_ARGS="-m model.gguf -c 4096 --port 9000"

# Two installs into one environment must not run at once.
.NOTPARALLEL:

PYTHON     ?= python3
SERVE_ARGS ?=
TEST_ARGS  ?=
CLIENTS    ?=
VENV       := .venv
OR_SAY_WHY  = || { echo "llamaserve: pip could not install what the build needs: check the network, the proxy and PIP_INDEX_URL" >&2; exit 1; }
BIN        := $(VENV)/bin

.PHONY: serve test test-clients check build bench-peers sanitize wheel clean

serve: build
	@$(BIN)/llamaserve serve $(SERVE_ARGS)

test: build $(VENV)/.test-ready
	$(BIN)/python -m pytest $(TEST_ARGS)

# Slow, and each client is installed from the package index: not part of what must pass before a change lands.
test-clients: build $(VENV)/.test-ready
	$(BIN)/python -m tests.clients.run $(CLIENTS)

check: build $(VENV)/.test-ready $(VENV)/.check-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest llamaserve._engine llamaserve._hot --allowlist tests/stubtest_allowlist.txt
	$(BIN)/python -m pytest tests/unit/test_layers.py

# Runs every time: CMake finds out itself what is to do, and says so; the install then has nothing left to compile.
build: $(VENV)/.build-ready
	@$(BIN)/python _native/build_in_place.py
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-build-isolation --editable .

# What the scenarios of bench/ need: the peers, and matplotlib and the load generator's client.
bench-peers: build $(VENV)/.bench-ready
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/peers -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
	  -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)" $(CMAKE_ARGS)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/peers --target llama-batched-bench llama-server

sanitize: sanitize-address sanitize-thread

sanitize-%: build $(VENV)/.test-ready
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native --target _engine_$*
	$(BIN)/python tests/sanitized.py $*

wheel: $(VENV)/.test-ready
	$(BIN)/python -m build

$(VENV)/.venv-ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "llamaserve: Python 3.10 or later is needed, %s is %d.%d; set PYTHON=..." % (sys.executable, *sys.version_info[:2]))'
	@$(PYTHON) -m venv $(VENV) || { echo "llamaserve: cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" $(OR_SAY_WHY)
	@touch $@

$(VENV)/.build-ready: pyproject.toml $(VENV)/.venv-ready
	@$(BIN)/python -m pip install --quiet --group build $(OR_SAY_WHY)
	@touch $@

$(VENV)/.test-ready: pyproject.toml $(VENV)/.venv-ready
	@$(BIN)/python -m pip install --quiet --group test $(OR_SAY_WHY)
	@touch $@

$(VENV)/.bench-ready: pyproject.toml $(VENV)/.venv-ready
	@$(BIN)/python -m pip install --quiet --group bench $(OR_SAY_WHY)
	@touch $@

$(VENV)/.check-ready: pyproject.toml $(VENV)/.venv-ready
	@$(BIN)/python -m pip install --quiet --group check $(OR_SAY_WHY)
	@touch $@

clean:
	rm -rf build dist *.egg-info llamaserve/_engine.*.so llamaserve/_hot.*.so
