#!/usr/bin/env bash
# Builds a Rust workspace's tests for aarch64 and runs them under qemu-user.
#
#   usage: test.sh DIR [cargo test arguments...]
#   e.g.   test.sh . --workspace --exclude mycrate-py --release
#          ARM_CARGO=clippy test.sh . --workspace -- -D warnings
#
#   ARM_ROOT  where setup.sh put things        (default /opt/arm64)
#   ARM_CPUS  CPUs to run on, one after another    (default "max": every feature)
#             neoverse-n1: dotprod and fp16, no i8mm; cortex-a72: plain NEON
#   ARM_ARCH  aarch64, s390x for a big-endian run, i686 for a 32-bit one   (default aarch64)
#   ARM_CARGO cargo command: test, clippy, build, "nextest run" (default test)
#   ARM_RUSTFLAGS  flags for the compiler (the machine's RUSTFLAGS are not used)
set -euo pipefail

root=${ARM_ROOT:-/opt/arm64}
arch=${ARM_ARCH:-aarch64}
die() { printf 'arm-test: %s\n' "$*" >&2; exit 2; }
case $arch in i686) qemu=qemu-i386 ;; s390x) qemu=$root/bin/qemu-s390x ;; *) qemu=qemu-$arch ;; esac
[ -f "${1:-}/Cargo.toml" ] || die "usage: test.sh DIR [cargo arguments...]"
[ -f "$root/done" ] || die "run setup.sh first (nothing finished in $root)"
dir=$(cd "$1" && pwd)
shift
rust=$(readlink -f "$root/rust")
target=$arch-unknown-linux-gnu
gnu=$arch-linux-gnu
[ -d "$rust/usr/lib/rustlib/$target/lib" ] || die "no std for $arch here (s390x: S390X=1 setup.sh; i686: I686=1 setup.sh)"

# Cargo is the machine's own; the compiler is the one with a std for $target.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER
[ -z "${ARM_RUSTFLAGS:-}" ] || export RUSTFLAGS=$ARM_RUSTFLAGS
up=$(tr 'a-z-' 'A-Z_' <<<"$target")
export RUSTC=$rust/rustc RUSTDOC=$rust/rustdoc "CARGO_TARGET_${up}_LINKER=$gnu-gcc" \
  "CC_${target//-/_}=$gnu-gcc" "AR_${target//-/_}=$gnu-ar" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$dir/target}/arm"

read -ra words <<<"${ARM_CARGO:-test}"
cargo=cargo
[ "${words[0]}" != clippy ] || cargo=$rust/cargo-clippy
# Cargo's doc tests need a rustdoc about as new as cargo: not with an old one.
more=()
case " $* " in
  *" --lib "* | *" --bin"* | *" --test"* | *" --example"* | *" --doc "* | *" --all-targets "*) ;;
  *) [[ ${words[0]} != test || $("$RUSTDOC" --help) == *--test-runtool* ]] || more=(--tests) ;;
esac

cd "$dir"
for cpu in ${ARM_CPUS:-max}; do
  printf 'arm-test: %s %s for %s, %s -cpu %s, %s\n' "${words[*]}" "$dir" "$arch" "$qemu" "$cpu" "$("$RUSTC" -V)"
  export "CARGO_TARGET_${up}_RUNNER=$qemu -cpu $cpu -L /usr/$gnu"
  "$cargo" "${words[@]}" --target "$target" "${more[@]}" "$@"
done
