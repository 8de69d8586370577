"""Decoding and products beside ggml, PyTorch and the machine's limits, in turns in one process; draws them.

    python benches/peers.py [--only decode,gemv,gemm,dram,a16] [--types q4_K,...] [--threads 1,2]
                            [--seconds 0.4] [--isa avx2] [--json FILE] [--draw FOLDER]

needs llama-cpp-python (ggml, compiled natively; or ``NINFER_PEER_GGML`` naming the folder of its
libraries) and a C compiler for the limits. ggml is called through its public C functions: ``to_float``
for decoding, its threaded ``mul_mat`` on plain weights; quantising the activations is included on both
sides. ``dram`` is one token with at least 1 GiB of weights and the most threads (some 4 GiB of memory).
``a16`` sets exact weights and float activations beside PyTorch's product of bfloat16 (for ``fp32``:
binary32) weights, where torch is installed. Weights: random valid blocks. Figures: least and median
time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ninfer_rs as nr

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import draw
import ggml_peer
import limits

# The nearest ggml type of formats that ggml does not have, by weights a second.
NEAREST = {
    "q4_g64_fp16": "q4_0",
    "q5_g64_fp16": "q5_0",
    "q6_g64_fp16": "q6_K",
    "q8_g32_fp16": "q8_0",
    "q2_g64_fp16": "q2_0",
    "t2_g128_fp16": "q2_K",
    "nvfp4": "iq4_nl",
}
K = 4096
MIB = 1 << 20
# Seconds before a turn with several threads, and the timed runs of such a turn.
REST = 0.02
RUNS = 3
# Formats without an integer path: A16 alone.
FLOAT = ("bf16", "fp32", "fp8_e4m3fn_row_bf16", "fp8_e4m3fn_row_fp16")


def cpu() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown processor"


def torch_version() -> str | None:
    """Of PyTorch, if it is installed."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def in_turns(
    runs: dict[str, Callable[[], object]], seconds: float, threads: int = 1
) -> dict[str, dict[str, float]]:
    """Least and median seconds of each, run one after the other again and again.

    A contender's threads may spin on for milliseconds after its work. With more than one thread, turns are
    therefore of several runs, the first one untimed, and begin with a rest.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, run in runs.items():
            if threads > 1:
                time.sleep(REST)
                run()
            for _ in range(1 if threads == 1 else RUNS):
                started = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - started)
    return {name: {"least": min(t), "median": statistics.median(t)} for name, t in times.items()}


# What a line may reach at most: its name, a run, and the bytes or operations of a run.
Limit = tuple[str, Callable[[], object], float]


def limit_of(name: str, found: tuple[Callable[[], object], float] | None) -> Limit | None:
    """None where the machine or the compiler lacks what it needs."""
    return None if found is None else (name, *found)


def with_limit(
    runs: dict[str, Callable[[], object]], limit: Limit | None, seconds: float, threads: int = 1
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """As :func:`in_turns`; and the limit of the machine, measured in the same turns."""
    if limit is None:
        return in_turns(runs, seconds, threads), {}
    name, run, amount = limit
    t = in_turns(runs | {"limit": run}, seconds, threads)
    of = t.pop("limit")
    rate = {f"limit{w}": round(amount / of[k] * 1e-9, 3) for w, k in (("", "least"), (" median", "median"))}
    return t, {"limit of": name} | rate


def ours_of(kind: str, n: int, k: int = K) -> tuple[nr.Tensor, str, np.ndarray]:
    """Our tensor of a ggml type or of a format of the registry, the peer's type and its blocks."""
    peer = NEAREST.get(kind, kind)
    blocks = ggml_peer.random_rows(peer, n, k, seed=1)
    if kind not in NEAREST:
        return nr.Tensor.from_payload(f"gguf_{kind.lower()}", (n, k), blocks), peer, blocks
    f = nr.get_format(kind)
    rng = np.random.default_rng(2)
    if kind == "nvfp4":
        codes = rng.integers(0, 256, (n, k // 2), np.uint8)
        scales = rng.integers(1, 0x7F, (n, k // 16), np.uint8)
        words = {"codes": codes, "scales": scales, "divisors": np.ones(1, np.float32)}
        return nr.Tensor.from_words(kind, (n, k), **words), peer, blocks
    codes = rng.integers(f.code_min, f.code_max, (n, k), np.int8, endpoint=True)
    scales = rng.uniform(0.01, 0.03, (n, k // f.group_size)).astype(np.float16).view(np.uint16)
    return nr.Tensor.from_words(kind, (n, k), codes=codes, scales=scales), peer, blocks


def decode(peer: Any, kinds: list[str], seconds: float, machine: limits.Limits) -> Iterator[dict[str, Any]]:
    """GB/s of binary32 output, one thread: 1 MiB stays in the second-level cache, 64 MiB go to memory.

    All write to the same place: two of 1 MiB would push each other out of the cache. The limit: plain stores.
    """
    for where, n, k in (("cache", 256, 1024), ("64 MiB", 4096, K)):
        place = np.zeros((n, k), np.float32)
        limit = limit_of("plain stores", machine.storing(place, 1))
        for kind in kinds:
            tensor, other, blocks = ours_of(kind, n, k)

            def mine(t: nr.Tensor = tensor, out: np.ndarray = place) -> object:
                return t.dequantize(out=out, threads=1)

            def its(name: str = other, b: np.ndarray = blocks, out: np.ndarray = place) -> object:
                return peer.dequantize(name, b, out.size, out.reshape(-1))

            t, most = with_limit({"ours": mine, "ggml": its}, limit, seconds)
            found = rates(t, 4 * n * k, "GB/s") | most
            yield {"operation": f"decode to {where}", "threads": 1, "format": kind, "peer": other} | found


def products(
    peer: Any,
    kinds: list[str],
    seconds: float,
    tokens: int,
    threads: int,
    n: int,
    what: str,
    machine: limits.Limits,
) -> Iterator[dict[str, Any]]:
    """GB/s of our stored weights for one token, GFLOP/s for more.

    The limit: a plain read of as many bytes by as many threads, or the peak of integer products.
    """
    dots = "int8 maddubs 256-bit" if nr.simd.info()["isa"] in ("avx2", "avx_vnni") else "int8 dot 512-bit"
    x = np.random.default_rng(0).standard_normal((tokens, K)).astype(np.float32)
    out = np.empty((tokens, n), np.float32)
    for kind in kinds:
        tensor, other, blocks = ours_of(kind, n)

        def mine(t: nr.Tensor = tensor) -> object:
            return t.matmul(x, activation="a8", out=out, threads=threads)

        runs: dict[str, Callable[[], object]] = {"ours": mine}
        if hasattr(tensor, "prepare"):
            prepared = tensor.prepare()
            runs["prepared"] = lambda p=prepared: p.matmul(x, activation="a8", out=out, threads=threads)
        if tokens == 1:
            # More than once where it is short, as threads are started for it.
            times = max(1, 64 * MIB // blocks.nbytes)
            limit = limit_of("plain reads", machine.reading(blocks, threads, times))
        else:
            limit = limit_of(dots, machine.peak(dots, threads))
        with peer.matmul_plan(other, blocks, n, K, n=tokens, threads=threads) as plan:
            plan.set_x(x)
            t, most = with_limit(runs | {"ggml": plan.run}, limit, seconds, threads)
        amount, unit = (tensor.nbytes, "GB/s") if tokens == 1 else (2 * n * K * tokens, "GFLOP/s")
        found = rates(t, amount, unit) | most
        yield {"operation": what, "threads": threads, "format": kind, "peer": other} | found


def dram(
    peer: Any, kinds: list[str], seconds: float, threads: int, machine: limits.Limits
) -> Iterator[dict[str, Any]]:
    """As :func:`products` for one token and at least 1 GiB of weights."""
    for kind in kinds:
        row = ours_of(kind, 128)[0].nbytes // 128
        rows = -(-1024 * MIB // row // 128) * 128
        yield from products(peer, [kind], seconds, 1, threads, rows, "matrix-vector, 1 GiB", machine)


def floats_of(kind: str, n: int) -> nr.Tensor:
    """A tensor of a format without an integer path: finite words of moderate size."""
    rng = np.random.default_rng(3)
    words = (rng.standard_normal((n, K)) * 0.02).astype(np.float32).view(np.uint32)
    if kind == "fp32":
        return nr.Tensor.from_payload(kind, (n, K), words.view(np.uint8).ravel())
    if kind == "bf16":
        return nr.Tensor.from_payload(kind, (n, K), (words >> 16).astype(np.uint16).view(np.uint8).ravel())
    codes = rng.integers(0, 0x7F, (n, K), np.uint8) | rng.integers(0, 2, (n, K), np.uint8) << 7
    # 2^-7 in either type of scale.
    scales = np.full(n, 0x3C00 if kind.endswith("bf16") else 0x2000, np.uint16)
    return nr.Tensor.from_words(kind, (n, K), codes=codes, scales=scales)


def floats(
    kinds: list[str], seconds: float, tokens: int, threads: int, machine: limits.Limits
) -> Iterator[dict[str, Any]]:
    """A16 beside PyTorch: 10^9 weights a second for one token; for more GFLOP/s, with the peak."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(threads)
    n = 4096
    x = np.random.default_rng(0).standard_normal((tokens, K)).astype(np.float32)
    out = np.empty((tokens, n), np.float32)
    limit = limit_of("fma 512-bit", machine.peak("fma 512-bit", threads)) if tokens > 1 else None
    values = torch.from_numpy(np.random.default_rng(1).standard_normal((n, K)).astype(np.float32))
    for kind in [*FLOAT, *kinds]:
        tensor = floats_of(kind, n) if kind in FLOAT else ours_of(kind, n)[0]
        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        weights, columns = values.to(dtype), torch.from_numpy(x).to(dtype)

        def mine(t: nr.Tensor = tensor) -> object:
            return t.matmul(x, activation="a16", out=out, threads=threads)

        def its(w: Any = weights, c: Any = columns) -> object:
            return torch.mv(w, c[0]) if tokens == 1 else torch.mm(c, w.T)

        t, most = with_limit({"ours": mine, "torch": its}, limit, seconds, threads)
        amount, unit = (n * K, "Gweights/s") if tokens == 1 else (2 * n * K * tokens, "GFLOP/s")
        what = "A16 matrix-vector" if tokens == 1 else f"A16 matrix-matrix, {tokens} columns"
        found = rates(t, amount, unit, "torch") | most
        name = "torch binary32" if kind == "fp32" else "torch bfloat16"
        yield {"operation": what, "threads": threads, "format": kind, "peer": name} | found


def rates(times: dict[str, dict[str, float]], amount: float, unit: str, peer: str = "ggml") -> dict[str, Any]:
    """Rates by the least time, and the ratio to the peer by least and by median."""
    result: dict[str, Any] = {"unit": unit}
    for name, t in times.items():
        result[name] = round(amount / t["least"] * 1e-9, 3)
        result[f"{name} median"] = round(amount / t["median"] * 1e-9, 3)
    result["ratio"] = round(times[peer]["least"] / times["ours"]["least"], 3)
    result["ratio median"] = round(times[peer]["median"] / times["ours"]["median"], 3)
    return result


def main() -> int:
    """Runs, prints, records and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="decode,gemv,gemm,dram,a16")
    parser.add_argument("--types", default=",".join([*ggml_peer.BLOCK_TYPES, *NEAREST]))
    parser.add_argument("--threads", default="1,2" if (os.cpu_count() or 1) > 1 else "1")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each contender and line")
    parser.add_argument("--isa", default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path)
    args = parser.parse_args()
    if args.isa:
        nr.simd.use(args.isa)
    only = args.only.split(",")
    peer = ggml_peer.load("ggml", os.environ.get("NINFER_PEER_GGML"))
    kinds = args.types.split(",")
    threads = [int(t) for t in args.threads.split(",")]
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "isa": nr.simd.info()["isa"],
        "ninfer_rs": nr.__version__,
        "ggml": peer.version() if hasattr(peer, "version") else "llama-cpp-python",
        "numpy": np.__version__,
        "torch": torch_version(),
        "load": round(os.getloadavg()[0], 1),
        "limits": {str(t): limits.measure(t) for t in threads},
        "results": [],
    }
    print(json.dumps({k: v for k, v in record.items() if k != "results"}, indent=1))

    machine = limits.Limits()

    def series() -> Iterator[dict[str, Any]]:
        if "decode" in only:
            yield from decode(peer, kinds, args.seconds, machine)
        for t in threads:
            if "gemv" in only:
                yield from products(peer, kinds, args.seconds, 1, t, 4096, "matrix-vector", machine)
            if "gemm" in only:
                yield from products(
                    peer, kinds, args.seconds, 16, t, 4096, "matrix-matrix, 16 columns", machine
                )
                yield from products(
                    peer, kinds, args.seconds, 512, t, 4096, "matrix-matrix, 512 columns", machine
                )
            if "a16" in only:
                for tokens in (1, 512):
                    yield from floats(kinds, args.seconds, tokens, t, machine)
        if "dram" in only:
            yield from dram(peer, kinds, args.seconds, max(threads), machine)

    for line in series():
        record["results"].append(line)
        who = "torch" if "torch" in line else "ggml"
        most = f" {line['ours'] / line['limit']:.2f} of the limit" if "limit" in line else ""
        extra = f" prepared {line['prepared']:8.1f}" if "prepared" in line else ""
        print(
            f"{line['operation']:28} t{line['threads']} {line['format']:14} {line['ours']:8.1f}{extra} "
            f"{who} {line[who]:8.1f} {line['unit']:10} {line['ratio']:6.2f} "
            f"(median {line['ratio median']:.2f}){most}",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    if args.draw:
        for path in draw.pictures(record, args.draw):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
