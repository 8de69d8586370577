#!/usr/bin/env bash
# Runs the Rust tests for a foreign target under emulation and counts them.
#
#   usage: emulated.sh aarch64|s390x|i686 [quick]
#
#   quick     the subset for every change, for one or two CPU models; without it everything, which takes far longer.
#             Where the cross toolchain cannot be had, quick says so and is left out without a failure.
#   ARM_CPUS  only these models of aarch64          (default: max, neoverse-n1, cortex-a72; quick: max, cortex-a72)
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
# What every machine but this kind lacks is said in words; with `quick` that is no failure.
lacking() {
  [ -n "$quick" ] || die "$1; see docs/emulated-targets.md"
  printf 'emulated: SKIPPED: %s, quick: %s\n' "$arch" "$1"
  exit 0
}
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ] || ! grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then
  lacking "the emulated runs need Debian 12 (bookworm) on x86-64, as root, e.g. in a container"
fi
# Without quick, a CPU between the two: dot products, no matrix products.
[ "$arch" != aarch64 ] || [ -n "$quick" ] || cpus="max neoverse-n1 cortex-a72"
[ "$arch" != aarch64 ] || cpus=${ARM_CPUS:-$cpus}

"$here/setup.sh" || lacking "the cross toolchain could not be set up (its last line says why; it needs Debian's package mirrors)"
# Nobody looks into these builds, and half of their time would go into what debuggers want. A whole run emulates for longer
# than it compiles, so kernels and formats are optimised more, debug assertions and overflow checks kept.
export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0} CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
more=()
if [ -z "$quick" ]; then
  export CARGO_PROFILE_DEV_OPT_LEVEL=2 CARGO_PROFILE_TEST_OPT_LEVEL=2
  for crate in mapped gguf artifact; do more+=(--config "profile.dev.package.ninfer-$crate.opt-level=1"); done
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# These start their own binary again, which user-mode emulation cannot do without binfmt_misc.
again=(memory_does_not_grow_with_the_model a_killed_process_leaves_no_target a_killed_conversion_goes_on
       a_refused_length_leaves_nothing the_environment_forces_a_set_or_is_refused
       a_child_after_fork_has_threads_of_its_own)
# What quick takes: every format's decoding and products on every set of instructions, and files with their golden bytes.
kernels=(detection_finds decode_to_binary32 decode_over_threads quantisation_of_activations products_of_one_shape
         unaligned_payloads largest_sums few_columns_of_unquantised)
goldens=(golden gguf_decode encoders imports cast_direct registry sizes validity
         roundtrip tensors imatrix writing split source_gguf source_npy)
crates=(ninfer-formats ninfer-mapped ninfer-gguf ninfer-simd-ops ninfer-artifact)
run() { # run CPU ARGUMENTS... : one cargo test, its output kept for the count; after `--` names of tests
  local cpu=$1 cargo=() names=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do cargo+=("$1"); shift; done
  [ $# -eq 0 ] || { shift; names=("$@"); }
  ARM_CPUS=$cpu ARM_ARCH=$arch "$here/test.sh" "$here/../.." --locked --no-fail-fast "${more[@]}" "${cargo[@]}" -- "${names[@]}" "${again[@]/#/--skip=}" |
    tee -a "$log"
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
  case $arch-${quick:-all} in
    aarch64-quick)
      # One build of the kernels, without the unit tests: those would compile all of them once more.
      run "$cpu" -p ninfer-simd-ops --test tokens --test isa_matrix --test few_columns -- "${kernels[@]}" || ok=1
      ;;
    *-quick) run "$cpu" -p ninfer-formats -p ninfer-gguf -p ninfer-artifact "${goldens[@]/#/--test=}" || ok=1 ;;
    *)
      # The same crates for every CPU model, so that what one model's run compiled serves the next. `--tests`: without
      # it the examples would be compiled too. Those in the documentation run on one model.
      run "$cpu" "${crates[@]/#/-p}" --tests || ok=1
      [ "$cpu" != max ] || run "$cpu" "${crates[@]/#/-p}" --doc || ok=1
      ;;
  esac
  awk -v what="$arch, cpu $cpu${quick:+, quick}" -v s=$((SECONDS - begin)) '
    /^test result:/ { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i
                                                  if ($(i+1) ~ /^ignored/) g += $i } }
    END { printf "emulated: %s: %d passed, %d failed, %d ignored, %d s\n", what, p, f, g, s; exit p == 0 }' "$log" || ok=1
done
exit $ok
