"""Speed and error of our encoders of ggml blocks beside ggml's own, one thread each, in turns in one process.

    make test-real                     # installs llama-cpp-python, which brings ggml
    cargo build --release -p ninfer-simd-ops --example encode_speed
    python benches/ggml_encoders.py [--rows N] [--rounds N] [--binary PATH] [--json FILE]

Speed: rows of 4096 normal values, with and without importance; each round times every contender once, the
figures are the least and the median time over the rounds as million weights a second. Error: squared error of
ours over that of ggml, unweighted without importance, weighted with it (and unweighted too, in brackets).

ggml writes to one array, used again and again. Ours is timed the same way from Rust (``avx2``, ``avx512``:
the example program, on values of its own) and from Python, where every call makes a fresh payload
(``python``).
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
from pathlib import Path

import numpy as np

import ninfer_rs as nr

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from real.ggml import ENCODED, Ggml

K = 4096


class Native:
    """The example program, one request at a time."""

    def __init__(self, binary: Path) -> None:
        self.process = subprocess.Popen(
            [binary, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def time(self, request: str) -> float:
        """Seconds of one run."""
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


def error(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
    """Weighted squared error in binary64."""
    squares = (x.astype(np.float64) - y.reshape(x.shape)) ** 2
    return float((squares if weight is None else squares * weight).sum())


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16, help="rows of 4096 weights")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--binary", type=Path, default=Path("target/release/examples/encode_speed"))
    parser.add_argument("--types", nargs="*", default=list(ENCODED))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    ggml, native = Ggml(), Native(args.binary)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((args.rows, K), np.float32) * np.float32(0.02)
    importance = np.exp(rng.standard_normal(K)).astype(np.float32)
    isas = [isa for isa in ("avx2", "avx512") if isa in nr.simd.info()["available"]]
    results: list[dict[str, object]] = []
    print(f"{cpu()}, load {os.getloadavg()[0]:.1f}; M/s least (median)")
    plain_types = set(nr.ENCODERS["gguf_absmax"])
    jobs = [(name, "gguf_search", weight) for name in args.types for weight in (None, importance)]
    jobs += [(name, "gguf_absmax", None) for name in args.types if name in plain_types]
    for name, method, weight in jobs:
        out = np.zeros(nr.get_format(name).encoded_size(x.shape), np.uint8)
        times: dict[str, list[float]] = {"ggml": [], **{isa: [] for isa in isas}, "python": []}
        ours = nr.quantize(x, name, method, importance=weight, threads=1)
        for _ in range(args.rounds):
            for who, spent in times.items():
                if who == "ggml":
                    start = time.perf_counter()
                    ggml.quantize(name, x, weight, out)
                    spent.append(time.perf_counter() - start)
                elif who == "python":
                    start = time.perf_counter()
                    nr.quantize(x, name, method, importance=weight, threads=1)
                    spent.append(time.perf_counter() - start)
                else:
                    given = " importance" if weight is not None else ""
                    spent.append(native.time(f"{method} {name} {who} 1 {args.rows} {K}{given}"))
        values = ggml.dequantize(name, out, x.size)
        ratio = error(x, ours.dequantize(), weight) / error(x, values, weight)
        plain = error(x, ours.dequantize(), None) / error(x, values, None)
        given = "importance" if weight is not None else ""
        line = f"{name:12} {method} {given:10} error {ratio:.3f} ({plain:.2f})"
        row: dict[str, object] = {
            "format": name,
            "method": method,
            "importance": weight is not None,
            "error": ratio,
        }
        for who, spent in times.items():
            best, median = x.size / min(spent) / 1e6, x.size / statistics.median(spent) / 1e6
            line += f"  {who} {best:.1f} ({median:.1f})"
            row[who] = {"best": best, "median": median, "ratio": min(times["ggml"]) / min(spent)}
            if who != "ggml":
                line += f" = {min(times['ggml']) / min(spent):.1f}x"
        print(line)
        results.append(row)
    if args.json:
        record = {"cpu": cpu(), "load": os.getloadavg(), "rounds": args.rounds, "results": results}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
