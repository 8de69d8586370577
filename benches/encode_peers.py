"""Encoder speed in turns with PyTorch's vectorised formulation of the same arithmetic, in one run.

    cargo build --release -p ninfer-simd-ops --example encode_speed
    python benches/encode_peers.py [--binary PATH] [--rows N] [--rounds N] [--json FILE]

PyTorch (CPU) must be installed. Each round times every contender once, one after the other; the figures are
the best and the median over the rounds, in million weights a second. PyTorch's search is for the best of 75
binary16 scales per group by a weighted squared error in binary64; ours is ``grouped_search`` with importance:
its 65 to 68 candidates, exactly rounded errors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

K = 4096


def absmax(x: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale to binary32, then binary16, never to zero; reciprocal rounded once; codes half to even."""
    q = (1 << (bits - 1)) - 1
    low = -q if bits == 8 else -q - 1
    v = x.reshape(x.shape[0], -1, group)
    m = v.abs().amax(-1, keepdim=True)
    s = (m / q).half()
    s = torch.where((s == 0) & (m > 0), torch.full_like(s, 2.0**-24), s)
    r = torch.where(s > 0, 1.0 / s.float(), torch.zeros_like(m))
    return torch.clamp(torch.round(v * r), low, q).to(torch.int8), s


def search(
    x: torch.Tensor, w: torch.Tensor, bits: int = 4, group: int = 64, candidates: int = 75
) -> torch.Tensor:
    """The scale of least weighted squared error in binary64 among the candidates."""
    q = (1 << (bits - 1)) - 1
    v = x.reshape(x.shape[0], -1, group)
    iw = w.reshape(1, -1, group).double()
    vd = v.double()
    base = v.abs().amax(-1, keepdim=True) / q
    best = torch.full(base.shape, float("inf"), dtype=torch.float64)
    scale = torch.zeros_like(base)
    for i in range(candidates):
        s = (base * (0.5 + i * (0.7 / (candidates - 1)))).to(torch.float16).float()
        r = torch.where(s > 0, 1.0 / s, torch.zeros_like(s))
        c = (v * r).round().clamp(-q - 1, q)
        e = ((vd - c.double() * s.double()) ** 2 * iw).sum(-1, keepdim=True)
        m = e < best
        best = torch.where(m, e, best)
        scale = torch.where(m, s, scale)
    return scale.half()


def fp8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 rows to E4M3FN with one bfloat16 scale a row."""
    s = (x.abs().amax(-1, keepdim=True).float() / 448.0).bfloat16()
    return (x.float() * (1.0 / s.float())).clamp(-448, 448).to(torch.float8_e4m3fn), s


class Ours:
    """The example program, one request at a time."""

    def __init__(self, binary: Path) -> None:
        self.process = subprocess.Popen(
            [binary, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def time(self, request: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def cpu() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def main() -> int:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=Path("target/release/examples/encode_speed"))
    parser.add_argument("--rows", type=int, default=1024, help="rows of 4096 weights for the fast encoders")
    parser.add_argument("--search-rows", type=int, default=64, help="rows of 4096 weights for the searches")
    parser.add_argument("--threads", type=int, help="threads of every contender; all cores by default")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    threads: int = args.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(args.rows, K, generator=generator) * 0.02
    small = x[: args.search_rows].contiguous()
    half = x.bfloat16()
    weight = torch.rand(K, generator=generator) ** 2 + 0.01

    def timed(f: Callable[[], object]) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            f()
        return time.perf_counter() - start

    ours = Ours(args.binary)
    isas = ["avx2", "avx512"] if "avx512f" in Path("/proc/cpuinfo").read_text() else ["avx2"]
    groups: list[tuple[str, int, Callable[[], object], str]] = [
        (
            "grouped_absmax q4",
            args.rows,
            lambda: absmax(x, 4, 64),
            "grouped_absmax q4_g64_fp16 {isa} {t} {n} 4096",
        ),
        (
            "grouped_absmax q8",
            args.rows,
            lambda: absmax(x, 8, 32),
            "grouped_absmax q8_g32_fp16 {isa} {t} {n} 4096",
        ),
        (
            "fp8_row_maxabs from bf16",
            args.rows,
            lambda: fp8_rows(half),
            "fp8_row_maxabs fp8_e4m3fn_row_bf16 {isa} {t} {n} 4096 bf16",
        ),
        (
            "grouped_search q4, importance",
            args.search_rows,
            lambda: search(small, weight),
            "grouped_search q4_g64_fp16 {isa} {t} {n} 4096 importance",
        ),
    ]
    record: dict[str, object] = {
        "cpu": cpu(),
        "threads": threads,
        "torch": torch.__version__,
        "load": os.getloadavg(),
        "rounds": args.rounds,
        "results": [],
    }
    print(f"{cpu()}, {threads} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"{'what':32} {'who':8} {'M/s best':>10} {'M/s median':>11} {'times torch':>12}")
    for name, rows, peer, request in groups:
        times: dict[str, list[float]] = {"torch": [], **{isa: [] for isa in isas}}
        for _ in range(args.rounds):
            times["torch"].append(timed(peer))
            for isa in isas:
                times[isa].append(ours.time(request.format(isa=isa, t=threads, n=rows)))
        n = rows * K
        for who, t in times.items():
            best, median = n / min(t) / 1e6, n / statistics.median(t) / 1e6
            ratio = min(times["torch"]) / min(t)
            print(f"{name:32} {who:8} {best:10.1f} {median:11.1f} {ratio:12.1f}")
            assert isinstance(record["results"], list)
            record["results"].append(
                {"what": name, "who": who, "best": best, "median": median, "ratio": ratio}
            )
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
