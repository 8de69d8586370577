#!/usr/bin/env bash
# Instructions a weight (K = 4,096), counted by the emulator, as a table: of the A8 products with one column on AArch64,
# or of decoding and of the A16 products with one column, which `neon` does for all tokens.
#
#   usage: [NINFER_GGML_SOURCE=<folder "ggml" of its sources>] count.sh [a8|a16]
#
# With the variable, ggml's NEON kernels of the same types beside the A8 products, compiled by the cross gcc with -O3 and
# the same features. Counted is the second of two products of the same weights (the first of one run, less that of
# another), over 256 rows, the conversion of the activations' layout included, their quantisation not; for ggml one
# `vec_dot` a row.
#
#   COUNT     a program of another build to count   (default: builds the example `instruction_count`)
set -euo pipefail

work=${1:-a8}
case $work in a8 | a16) ;; *) echo 'usage: count.sh [a8|a16]' >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$here/../.." && pwd)
"$here/setup.sh" >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gcc -O2 -shared -fPIC -o "$tmp/count.so" "$here/count.c"
ours=${COUNT:-}
if [ -z "$ours" ]; then
  ARM_CARGO=build "$here/test.sh" "$dir" --locked --release -p ninfer-simd-ops --example instruction_count >&2
  ours=${CARGO_TARGET_DIR:-$dir/target}/arm/aarch64-unknown-linux-gnu/release/examples/instruction_count
fi
ggml=${NINFER_GGML_SOURCE:-}
march() { case $1 in neon) echo armv8-a ;; *) echo armv8.2-a+dotprod ;; esac; }
[ "$work" = a8 ] || ggml=
for token in neon neon_dotprod; do
  [ -z "$ggml" ] || aarch64-linux-gnu-gcc -O3 -march="$(march $token)" -static -ffunction-sections -fdata-sections -Wl,--gc-sections \
    -Wl,--unresolved-symbols=ignore-all -w -D_GNU_SOURCE -I"$ggml/include" -I"$ggml/src" -I"$ggml/src/ggml-cpu" \
    -o "$tmp/$token" "$here/count_ggml.c" "$ggml/src/ggml-cpu/arch/arm/quants.c" -lm
done
count() { qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu -plugin "$tmp/count.so" "$@" 2>&1 | awk '$1 == "instructions" { print $2 }'; }
a_weight() { # a_weight PROGRAM ARGUMENTS... : the program takes the number of products last
  local once twice
  once=$(count "$@" 1)
  twice=$(count "$@" 2)
  awk -v a="$once" -v b="$twice" 'BEGIN { printf "%.2f", (b - a) / (256 * 4096) }'
}
if [ "$work" = a16 ]; then
  echo '| format | decoding | A16 |'
  echo '|---|---:|---:|'
  for format in bf16 gguf_{q8_0,q4_0,q5_0,q2_0,q2_k,q3_k,q4_k,q5_k,q6_k,iq2_xxs,iq2_xs,iq2_s,iq3_xxs,iq3_s,iq1_s,iq1_m,iq4_nl,iq4_xs} \
                q2_g64_fp16 t2_g128_fp16 q4_g64_fp16 q5_g64_fp16 q6_g64_fp16 q8_g32_fp16 nvfp4 fp8_e4m3fn_row_bf16; do
    printf '| %s | %s | %s |\n' "$format" "$(a_weight "$ours" decode "$format" neon 256 1)" \
      "$(a_weight "$ours" a16 "$format" neon 256 1)"
  done
  exit
fi
echo '| format | `neon` | ggml | `neon_dotprod` | ggml |'
echo '|---|---:|---:|---:|---:|'
for pair in q8_0 q4_0 q5_0 q2_0- q2_K q3_K q4_K q5_K q6_K iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq1_s iq1_m iq4_nl iq4_xs \
            q2_g64_fp16- t2_g128_fp16- q4_g64_fp16:q4_0 q5_g64_fp16:q5_0 q6_g64_fp16:q6_K q8_g32_fp16:q8_0 nvfp4-; do
  theirs=${pair#*:}
  name=${pair%%:*}
  name=${name%-}
  case $name in *_fp16 | nvfp4) format=$name ;; *) format=gguf_${name,,} ;; esac
  printf '| %s |' "$format"
  for token in neon neon_dotprod; do
    peer='–'
    if [ -n "$ggml" ] && [[ $pair != *- ]]; then
      peer=$(a_weight "$tmp/$token" "$theirs" 256)
      [ "$theirs" = "$name" ] || peer="$peer ($theirs)"
    fi
    printf ' %s | %s |' "$(a_weight "$ours" a8 "$format" "$token" 256 1)" "$peer"
  done
  echo
done
