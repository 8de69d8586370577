#!/usr/bin/env bash
# Runs the Rust tests for a foreign target under emulation and counts them.
#
#   usage: emulated.sh aarch64|s390x|i686 [quick]
#
#   quick     the subset for every change; without it everything, which takes longer
#   ARM_ROOT, ARM_RUST: see setup.sh. CARGO_TARGET_DIR: where to build (default target/).
set -euo pipefail

arch=${1:-}
quick=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
die() { printf 'emulated: %s\n' "$*" >&2; exit 2; }
case $arch in
  aarch64) cpus="max cortex-a72" ;;
  s390x) export S390X=1; cpus=max ;;
  i686) export I686=1; cpus=max ;;
  *) die "usage: emulated.sh aarch64|s390x|i686 [quick]" ;;
esac
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ] || ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
  die "the emulated runs need Debian 12 (bookworm) on x86-64, as root, e.g. in a container; see docs/emulated-targets.md"
fi
# Without quick, a CPU between the two: dot products, no matrix products.
[ "$arch" != aarch64 ] || [ -n "$quick" ] || cpus="max neoverse-n1 cortex-a72"

"$here/setup.sh"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# These start their own binary again, which user-mode emulation cannot do without binfmt_misc.
again=(memory_does_not_grow_with_the_model a_killed_process_leaves_no_target a_refused_length_leaves_nothing
       the_environment_forces_a_set_or_is_refused a_child_after_fork_has_threads_of_its_own)
run() { # run CPU ARGUMENTS... : one cargo test, its output kept for the count
  ARM_CPUS=$1 ARM_ARCH=$arch "$here/test.sh" "$here/../.." --locked --no-fail-fast "${@:2}" -- "${again[@]/#/--skip=}" | tee -a "$log"
}
ok=0
for cpu in $cpus; do
  # What detection must find there: a token too few would leave its kernels untested, one too many dies of SIGILL.
  case $arch-$cpu in
    aarch64-max) isa=scalar,neon,neon_dotprod,neon_i8mm ;;
    aarch64-neoverse-n1) isa=scalar,neon,neon_dotprod ;;
    aarch64-*) isa=scalar,neon ;;
    *) isa=scalar ;;
  esac
  export NINFER_EXPECT_ISA=$isa
  : >"$log"
  begin=$SECONDS
  # Formats, files and containers hold no code that depends on the CPU model: one model is enough for them.
  if [ "$cpu" = max ]; then
    run "$cpu" -p ninfer-formats -p ninfer-gguf -p ninfer-artifact -p ninfer-mapped || ok=1
  fi
  # Big-endian machines are asked for files and formats; see docs/emulated-targets.md for the kernels there.
  if [ "$arch" = s390x ]; then
    :
  elif [ -n "$quick" ]; then
    run "$cpu" -p ninfer-simd-ops --lib --test tokens --test process || ok=1
  else
    run "$cpu" -p ninfer-simd-ops || ok=1
  fi
  awk -v what="$arch, cpu $cpu${quick:+, quick}" -v s=$((SECONDS - begin)) '
    /^test result:/ { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i
                                                  if ($(i+1) ~ /^ignored/) g += $i } }
    END { printf "emulated: %s: %d passed, %d failed, %d ignored, %d s\n", what, p, f, g, s; exit p == 0 }' "$log" || ok=1
done
exit $ok
