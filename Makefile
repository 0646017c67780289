# make demo: set up and watch three tenants' tasks learn.  make test: run the whole test suite.
# Variables: PYTHON (3.11 or newer), PROFILE (cpu, gpu, vulkan or metal), TORCH_INDEX and LLAMA_INDEX (where to take
# torch, and a compiled llama.cpp, from), EXTRAS (serve, api, docs), SAMPLER (the demo's: torch or llama.cpp), BENCH (what to
# measure: names of benchmarks, --quick), WRITE (1: bench-guard writes its counts down), KILLS, KILLS_OF_NODES, MINUTES.

PYTHON ?= python3
KILLS ?= 200
KILLS_OF_NODES ?= 50
MINUTES ?= 60
BIN := .venv/bin
export PROFILE TORCH_INDEX LLAMA_INDEX

.PHONY: demo install dev test test-slow test-slow-screens test-slow-engine test-slow-programs test-slow-properties test-slow-clients test-slow-cluster test-slow-first-hour test-slow-libraries test-slow-processors test-slow-pythons test-slow-real test-slow-vllm test-slow-vulkan kills fuzz coverage check docs format bench bench-guard pictures lock base clean

# llama.cpp is compiled in the background: the demo's base is sampled by torch, unless SAMPLER=llama.cpp.
demo:
	@$(PYTHON) -m tools.install $(EXTRAS) $(if $(filter llama.cpp,$(SAMPLER)),,--llama-behind)
	@$(BIN)/marlaas demo $(if $(SAMPLER),--sampler $(SAMPLER))

install:
	@$(PYTHON) -m tools.install $(EXTRAS)

dev:
	@$(PYTHON) -m tools.install dev

# Each behaviour's quickest proof: what every change has to pass. About seven minutes on two cores.
test: dev
	@$(BIN)/python -m tools.suite

# What proves it once more: in the rest of each matrix, at other sizes, from end to end, for minutes.
test-slow: test-slow-screens test-slow-engine test-slow-programs test-slow-properties

# The application: every view in every kind of home at every size, every theme, every dialog.
test-slow-screens: dev
	@$(BIN)/python -m pytest -q -m slow --timeout 1800 tests/app tests/test_*.py

# Stages, workers and tools: every contract with each kind of sampler and trainer, each library, 200 steps under the canary.
test-slow-engine: dev
	@$(BIN)/python -m pytest -q -m slow --timeout 1800 tests/engine tests/plugins tests/tools tests/benchmarks

# Whole programs: kills, damage, yielding, moved homes, whole runs alone, together and under load.
test-slow-programs: dev
	@$(BIN)/python -m pytest -q -m slow --timeout 1800 tests/end_to_end tests/slow

# Every property with ten times the examples that `make test` draws.
test-slow-properties: dev
	@MARLAAS_EXAMPLES=10 $(BIN)/python -m pytest -q --timeout 1800 \
		-m "(hypothesis or properties) and not slow and not libraries and not vllm and not clients and not cluster and not real"

# The ten tasks of a new user's first hour, from the screens alone, in terminals of three sizes; minutes.
test-slow-first-hour: dev
	@$(BIN)/python -m pytest -q -m first_hour

# Environments of other libraries, each with the real one: installs gigabytes into .libraries, once.
test-slow-libraries: dev
	@$(BIN)/python -m pytest -q -m libraries

# Programs and evaluations that others wrote, unchanged, through the endpoints: installs them into .clients, once.
test-slow-clients: dev
	@$(BIN)/python -m tools.environments clients
	@$(BIN)/python -m pytest -q -m clients

# Tests of arithmetic with each library that multiplies, instruction set of this processor and number of threads: a line
# each, and a closing count. Then llama.cpp for AVX2 alone, which is compiled into .avx2, once.
test-slow-processors: dev
	@$(BIN)/python -m tools.matrix

# Plugins and task files under each other Python that marlaas promises and this machine has, without PyTorch: an environment
# each in .pythons. Each round ends with its counts; a closing line names those that failed.
test-slow-pythons: dev
	@rounds=0; failed=; for version in 3.11 3.12 3.13; do \
		$(BIN)/python -c "import sys; sys.exit('$$version' == '%d.%d' % sys.version_info[:2])" || continue; \
		venv=.pythons/$$version; export PATH="$$(echo $$HOME/.pyenv/versions/$$version.*/bin | tr ' ' :):$$PATH"; \
		test -x $$venv/bin/python || $(BIN)/uv venv -q --no-python-downloads --python $$version $$venv 2>/dev/null || continue; \
		rounds=$$((rounds + 1)); echo "=== Python $$version"; \
		$(BIN)/uv pip install -q --python $$venv --require-hashes --no-deps --only-binary :all: \
			$(patsubst %,-r constraints/hashes/%.txt,install serve dev) && \
		$(BIN)/uv pip install -q --python $$venv --no-deps --no-build-isolation -e . && \
		$$venv/bin/python -m pytest -q -p no:cacheprovider tests/plugins tests/engine/spec || failed="$$failed $$version"; \
	done; echo "$$rounds rounds, failed:$${failed:- none}."; test -z "$$failed"

# Several machines, as nodes of Ray on this one: bits, files, deaths; ends things KILLS_OF_NODES times at random. Says which
# tests could not be run here, and why: two of the docs' workstations need network namespaces, which are root's.
test-slow-cluster: dev
	@$(BIN)/python -m tools.environments cluster
	@KILLS_OF_NODES=$(KILLS_OF_NODES) .cluster/bin/python -m pytest -q -rs -m cluster

# A real model, SmolLM2-135M: learning, a killed engine, PEFT. About ten minutes; fetches 98 MB into .bench, once.
test-slow-real: dev
	@$(BIN)/python -m pytest -q -m real tests/slow/real

# vLLM for real, on its build for processors: installs 3.5 gigabytes into .vllm, once.
test-slow-vllm: dev
	@$(BIN)/python -m tools.environments vllm
	@.vllm/bin/python -m pytest -q -m vllm tests/engine/samplers tests/end_to_end/test_vllm.py

# llama.cpp on a card by way of Vulkan, or on Mesa's software device where there is none: compiles it into .vulkan, a
# quarter of an hour, once. GGML_VK_VISIBLE_DEVICES names the device, by Vulkan's count.
test-slow-vulkan: dev
	@$(BIN)/python -m tools.environments vulkan
	@GGML_VK_VISIBLE_DEVICES=$${GGML_VK_VISIBLE_DEVICES-0} .vulkan/bin/python -m pytest -q -m slow \
		tests/engine/samplers/test_llama_cards.py tests/slow/test_task_on_a_card.py

# Changed bytes at every border at which foreign ones come in, MINUTES in all; prints the seed that draws a fault again.
fuzz: dev
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# Kills processes of real engines, KILLS times, and proves that nothing was lost or doubled.
kills: dev
	@$(BIN)/python -m tests.kills --kills $(KILLS)

# The suite once more, counting lines: writes the number that `make check` prints, and fails where it has sunk by more
# than half a point. Lines of processes that end by `kill -9`, and of plugins' processes, are not counted.
coverage: dev
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m tools.suite; ended=$$?; $(BIN)/coverage combine --quiet; \
	share=$$($(BIN)/coverage report --format=total); known=$$(cut -d' ' -f1 tests/coverage.txt); \
	words="of all lines of app, engine and plugins run in the suite (\`make coverage\` counts anew)."; \
	if awk "BEGIN { exit !($$share < $$known - 0.5) }"; then \
		echo "$$share % of all lines ran, $$known % did before: \`coverage report\` names the lines."; exit 1; fi; \
	if [ $$ended = 0 ]; then echo "$$share % $$words" > tests/coverage.txt; fi; echo "$$share % $$words"; exit $$ended

check: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@cat tests/coverage.txt

# The site of docs/, with its reference written from the code, into build/docs. A link that leads nowhere fails it.
docs:
	@$(PYTHON) -m tools.install docs
	@$(BIN)/python -m tools.docs

format: dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Measures marlaas, beside others where there are any, and writes BENCHMARKS.md.
bench: dev
	@$(BIN)/python -m benchmarks $(BENCH)

# Counts what the hot paths do (calls, SQL statements, frames, operations of torch), and fails where that is not what
# benchmarks/guard/counts.txt says; WRITE=1 writes it there. About a minute, the same on every machine and under any load.
bench-guard: dev
	@$(BIN)/python -m benchmarks.guard $(if $(WRITE),--write)

# Takes the pictures in docs/ from a real demo while it runs; a minute.
pictures: dev
	@$(BIN)/python -m tools.pictures

# Chooses versions anew within constraints/cpu.txt, and writes constraints/hashes.
lock: dev
	@$(BIN)/python -m tools.lock

# Makes the shipped base model again and deletes the scores and the card of the old one; 20 minutes of a core.
base: dev
	@$(BIN)/python -m tools.base

clean:
	rm -rf .venv .venv-setup.log .venv-setup.lock .venv-llama.log .libraries .clients .cluster .vllm .vulkan .avx2 .pythons .bench build *.egg-info .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
