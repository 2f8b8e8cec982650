# The two commands that do everything on a fresh machine: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO := bus/grpc_api/v1/bus.proto
PROCESSES ?= 2
# A quarter of the examples of the property tests; `make test` plays all of them.
PROFILE ?= quick
FAST_TESTS := tests/unit tests/transcripts tests/properties tests/contract
# The code of this checkout, also where .venv is a link to that of another one.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export PYTHONDONTWRITEBYTECODE :=  # else each of the hundreds of programs that the tests start compiles the bus

.PHONY: help setup demo check test bench bench-peers proto clean
help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 13

setup:  ## create .venv and install everything; safe to repeat
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh

demo: setup  ## the idea on real data, in under two minutes; KEEP=1 leaves the broker running
	@$(BIN)/python -m bus.demo $(if $(KEEP),--keep,)

check: setup  ## ruff, import contracts, unit tests and mypy beside them: under a minute
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	@log=$$(mktemp); $(BIN)/mypy >$$log 2>&1 & mypy=$$!; \
	$(BIN)/pytest -q -n $(PROCESSES) --hypothesis-profile=$(PROFILE) $(FAST_TESTS); failed=$$?; \
	wait $$mypy || failed=1; cat $$log; rm $$log; exit $$failed

test: PROFILE = any-machine
test: check  ## everything; PROCESSES=4 runs the tests in four processes instead of two
	@# One process more: these tests wait for brokers, sessions and time for half of the time.
	$(BIN)/pytest -n $$(($(PROCESSES) + 1)) --dist loadfile tests/end_to_end tests/spark tests/simulation tests/integration

bench: setup  ## figures and pictures, into benchmarks/results
	$(BIN)/python -m benchmarks.run

bench-peers: setup  ## what the benchmarks compare with: Kafka's jars, confluent-kafka; safe to repeat
	@$(BIN)/python -m benchmarks.peers

proto: setup  ## regenerate the stubs
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)
	$(BIN)/python tools/freeze_contract.py

clean:  ## remove what setup and the demo made
	rm -rf $(VENV) .jars bus-demo-data
