#!/usr/bin/env bash
# Builds the abi3 wheel for aarch64, installs it into the emulated Python and runs Python tests from it.
#
#   usage: wheel.sh [pytest arguments...]      default: the parity tests and those of arrays, tensors and threads
#
#   MATURIN   the build tool, beside it zig of PyPI's maturin[zig]     (default: maturin)
#   LINKER    zig as the release has it, against an old glibc, or gcc (default: zig)
#   WHEEL     a wheel to test instead of building one
#   ARM_CPUS  CPU models, one after another         (default "max,sve=off neoverse-n1 cortex-a72")
#   ARM_ROOT, ARM_RUST: see setup.sh. CARGO_TARGET_DIR: where to build (default target/arm).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$here/../.." && pwd)
root=${ARM_ROOT:-/opt/arm64}
ARM_PYTHON=1 "$here/setup.sh"
cd "$dir"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if [ -n "${WHEEL:-}" ]; then
  cp "$WHEEL" "$out"
else (
  unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER
  target=aarch64-unknown-linux-gnu
  # The machine's own compiler if it has a standard library for the target, as in the release.
  [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null)" ] || export RUSTC="$(readlink -f "$root/rust")/rustc"
  export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$dir/target/arm}"
  case ${LINKER:-zig} in
    # As in the Makefile: zig's linker takes an order to strip debug sections for one to strip all names.
    zig) args=(--zig --compatibility manylinux2014) CARGO_PROFILE_RELEASE_STRIP=none && export CARGO_PROFILE_RELEASE_STRIP ;;
    *) args=() && export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc ;;
  esac
  maturin=${MATURIN:-maturin}
  PATH=$(dirname "$(command -v "$maturin")"):$PATH "$maturin" build --release --locked --target "$target" "${args[@]}" --out "$out"
) fi
python3 tools/check_wheel.py "$out"/*.whl
"$root/bin/arm-pip" click rich hypothesis ml_dtypes numpy pytest
rm -rf "$root"/site/ninfer_rs*  # nothing of an earlier wheel stays
"$root/bin/arm-pip" --no-deps "$out"/*aarch64.whl
tests=("$@")
[ $# -gt 0 ] || tests=(tests/parity tests/unit/test_arrays.py tests/unit/test_tensor.py tests/unit/test_threads.py)
ok=0
for cpu in ${ARM_CPUS:-max,sve=off neoverse-n1 cortex-a72}; do
  # A token too few would leave its kernels untested, one too many dies of SIGILL.
  case $cpu in
    max*) isa="scalar neon neon_dotprod neon_i8mm" ;;
    neoverse-n1) isa="scalar neon neon_dotprod" ;;
    *) isa="scalar neon" ;;
  esac
  printf 'arm-wheel: %s, cpu %s\n' "$(basename "$out"/*aarch64.whl)" "$cpu"
  ARM_CPU=$cpu "$root/bin/arm-python" -c "
import ninfer_rs
found = ' '.join(ninfer_rs.simd.info()['available'])
assert found == '$isa', found
assert ninfer_rs.__file__.startswith('$root'), ninfer_rs.__file__"
  # The emulator itself cannot go on in the child of a process that has threads.
  ARM_CPU=$cpu "$root/bin/arm-python" -m pytest -q -p no:cacheprovider "${tests[@]}" \
    --deselect tests/unit/test_threads.py::test_a_forked_child_does_not_hang || ok=1
done
exit $ok
