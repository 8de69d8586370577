"""Matrix-matrix products beside ggml in one process, in turns: GFLOP/s, ratios, and the 512-bit VNNI peak.

``python benches/gemm_peers.py [--tokens 16,512] [--threads 1,2] [--size 4096] [--isa NAME] [--seconds 0.6]``
needs llama-cpp-python (ggml, compiled natively) and a C compiler for the peak. GFLOP/s are 2 * N * K * T over
time; quantising the activations is included on both sides. Least time of the repetitions; random blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ninfer_rs as nr

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import ggml_peer

PEAK = r"""
#include <immintrin.h>
#include <time.h>
double peak(void) {
    __m512i acc[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < 12; i++) acc[i] = _mm512_set1_epi32(i);
    struct timespec s, e;
    double best = 0;
    for (int r = 0; r < 20; r++) {
        clock_gettime(CLOCK_MONOTONIC, &s);
        for (int n = 0; n < 200000; n++) {
            _Pragma("GCC unroll 12")
            for (int i = 0; i < 12; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
            __asm__ volatile("" : "+v"(acc[0]), "+v"(acc[1]), "+v"(acc[2]), "+v"(acc[3]), "+v"(acc[4]),
                             "+v"(acc[5]), "+v"(acc[6]), "+v"(acc[7]), "+v"(acc[8]), "+v"(acc[9]),
                             "+v"(acc[10]), "+v"(acc[11]));
        }
        clock_gettime(CLOCK_MONOTONIC, &e);
        double t = (e.tv_sec - s.tv_sec) + 1e-9 * (e.tv_nsec - s.tv_nsec);
        double rate = 200000.0 * 12 * 128 / t / 1e9;
        if (rate > best) best = rate;
    }
    return best;
}
"""


def vnni_peak() -> float:
    """GOP/s of one thread's 512-bit vpdpbusd; NaN where it cannot be built or run."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.c", Path(folder) / "peak.so"
        source.write_text(PEAK)
        command = ["cc", "-O2", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
        if subprocess.run(command, capture_output=True).returncode:
            return float("nan")
        function = ctypes.CDLL(str(library)).peak
        function.restype = ctypes.c_double
        return float(function())


def in_turns(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="16,512")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--types", default=",".join(ggml_peer.BLOCK_TYPES))
    args = parser.parse_args()
    n = k = args.size
    peer = ggml_peer.load("ggml")
    rng = np.random.default_rng(0)
    if args.isa:
        nr.simd.use(args.isa)
    print(
        f"kernels {nr.simd.info()['isa']}, {n} x {k}; 512-bit VNNI peak of a thread {vnni_peak():.0f} GOP/s\n"
    )
    print("| format | T | threads | ours GFLOP/s | ggml GFLOP/s | ratio | ours / peak |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in args.types.split(","):
        blocks = ggml_peer.random_rows(kind, n, k, seed=1)
        tensor = nr.Tensor.from_payload(f"gguf_{kind.lower()}", (n, k), blocks)
        for tokens in (int(t) for t in args.tokens.split(",")):
            x = rng.standard_normal((tokens, k)).astype(np.float32)
            out = np.empty((tokens, n), np.float32)
            for threads in (int(t) for t in args.threads.split(",")):
                with peer.matmul_plan(kind, blocks, n, k, n=tokens, threads=threads) as plan:
                    plan.set_x(x)

                    def ours(t: nr.Tensor = tensor, w: int = threads) -> object:
                        return t.matmul(x, activation="a8", out=out, threads=w)  # noqa: B023

                    peak = vnni_peak() * threads
                    best = in_turns({"ours": ours, "ggml": plan.run}, args.seconds)
                rate = {name: 2 * n * k * tokens / t / 1e9 for name, t in best.items()}
                print(
                    f"| {kind} | {tokens} | {threads} | {rate['ours']:.0f} | {rate['ggml']:.0f} | "
                    f"{rate['ours'] / rate['ggml']:.2f} | {rate['ours'] / peak:.2f} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
