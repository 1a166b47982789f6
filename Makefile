# The front door.  Everything is built by meson below build/; this file installs what is missing,
# calls it, and puts the three programs where people look for them: build/bin/.

BUILD ?= build
BUILDTYPE ?= debugoptimized
JOBS ?= $(shell nproc)
TRACE ?=
TRACES ?=
PREFIX ?=
ENGINES ?=
RESTART_ARGS ?=

.PHONY: help demo check check-gpu device-check sim planted check-engines build bench bench-blocks bench-reference bench-restart bench-large fuzz mutants coverage format lint nightly install clean \
	deps programs

help: ## what can be typed here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

demo: programs ## run the main job: a daemon, four workers, a workload (TRACE=FILE: your own trace)
	@clients/replay/demo.sh $(BUILD)/bin $(TRACE)

check: build ## pass the tests; the last line counts them
	@.ci/check $(BUILD) --no-suite nightly

check-gpu: build ## back ends for GPUs: contract, driver, kernels, end to end, on a driver that looks like one
	@.ci/check $(BUILD) --suite gpu

device-check: build ## what only a machine with a GPU can show, in under three minutes
	@tests/gpu/device_check.sh $(BUILD)

check-engines: build ## real engines on it, in environments under build/engines (ENGINES="llama vllm sglang lmcache")
	@.ci/deps --engines
	@tests/engines/run.py $(BUILD) $(ENGINES)

build: programs ## build/bin/prefixd, prefixctl, prefixd-replay, and the tests
	@ninja -C $(BUILD) -j $(JOBS) $(NINJA_QUIET)

# What a demo needs, without the tests.
programs: deps $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(JOBS) $(NINJA_QUIET) daemon/prefixd daemon/prefixd-holder clients/ctl/prefixctl clients/replay/prefixd-replay
	@mkdir -p $(BUILD)/bin
	@ln -sf ../daemon/prefixd $(BUILD)/bin/prefixd
	@ln -sf ../clients/ctl/prefixctl $(BUILD)/bin/prefixctl
	@ln -sf ../clients/replay/prefixd-replay $(BUILD)/bin/prefixd-replay

$(BUILD)/build.ninja:
	@meson setup $(BUILD) --buildtype=$(BUILDTYPE) $(MESON_ARGS)

deps:
	@.ci/deps

bench: deps ## short benchmarks, about two minutes: index, socket against Redis
	@.ci/bench short

bench-large: deps ## the same with 10 million blocks in the index, 4 million behind the socket
	@.ci/bench large

bench-blocks: deps ## moving blocks: host memory, codecs, checksums beside memcpy; Redis beside redis-benchmark
	@.ci/bench blocks

bench-restart: deps ## kill a daemon with a million blocks under load, 20 times: nothing lost, back in a second
	@.ci/bench restart $(RESTART_ARGS)

bench-reference: build ## replay the public traces against their reference results: TRACES=DIR
	@tests/bench/reference.sh $(BUILD)/bin "$(TRACES)"

sim: deps $(BUILD)/build.ninja ## simulated worlds with kills and faults: SEEDS=N of them (200), or SEED=S [STEPS=N] again
	@ninja -C $(BUILD) -j $(JOBS) --quiet tests/sim/sim
	@$(BUILD)/tests/sim/sim $(if $(SEED),$(SEED),--seeds $(or $(SEEDS),200)) $(STEPS)

planted: deps ## plant grave faults one by one and see that the simulation notices each
	@tests/sim/planted.sh

fuzz: deps ## fuzz every target for SECONDS (60) each, with clang
	@.ci/fuzz $${SECONDS_EACH:-60}

mutants: deps ## plant each small fault of tests/mutants and see that a test notices it
	@tests/mutants/run.sh

coverage: deps ## lines that the tests reach, with the limits that they must not fall below
	@.ci/coverage

format: ## lay the C sources out by .clang-format
	@git ls-files '*.c' '*.h' | xargs clang-format -i

lint: build ## only the lints
	@.ci/check $(BUILD) --suite lint

nightly: build ## the long proofs: whole soaks, all seeds, fuzz for ten minutes a target
	@.ci/check $(BUILD) --timeout-multiplier 4
	@.ci/sim $(BUILD) 2000 20000
	@tests/mutants/run.sh
	@.ci/fuzz 600

install: build ## programs, library, header, prefixd.pc (PREFIX=DIR, else /usr/local; DESTDIR)
	@[ -z "$(PREFIX)" ] || meson configure $(BUILD) --prefix="$(abspath $(PREFIX))"
	@meson install -C $(BUILD) || { \
		echo "prefixd: where you may not write use sudo make install, or PREFIX=DIR" >&2; exit 1; }
	@if [ "$$(id -u)" = 0 ] && [ -z "$(DESTDIR)" ]; then ldconfig; fi

clean:
	rm -rf $(BUILD)
