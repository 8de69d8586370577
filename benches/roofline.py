"""What bounds each kernel: its inner loop's instructions and port-bound cycles, by disassembly and llvm-mca.

    RUSTFLAGS="-C symbol-mangling-version=v0" cargo build --release -p ninfer-simd-ops --example gemm_speed
    python benches/roofline.py target/release/examples/gemm_speed [--match REGEX] [--cpu icelake-server]
                               [--clock GHZ] [--json FILE]

needs objdump (binutils 2.37 or newer, for names with their formats) and llvm-mca (in Debian's package
llvm). A loop is a backward jump; the loop reported of a function is the innermost one with the most
multiplications, unrolled by the compiler as it may be. Work is counted from the instructions: a
``vpdpbusd`` of 512 bits multiplies 64 pairs of bytes, a ``vfmadd`` or ``vmulps`` 16 numbers, a vector
store writes its width. ``cycles`` is the greater of llvm-mca's reciprocal throughput by ports and of its
simulated loop, with everything in the first-level cache; rates are for the clock given. Tile
instructions have no model: loops with them are listed with their counts only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"^\s+([0-9a-f]+):\t(?:[0-9a-f]{2} )*\s*\t?(\S+)\s*(.*)$")
TARGET = re.compile(r"^([0-9a-f]+) <")
INTERESTING = (
    r"simd_ops::(arch|lanes|scalar).*(terms|minima|chunk|add::|decode::|quantize|one::|few::|encode)"
)
WIDTH = {"zmm": 64, "ymm": 32, "xmm": 16}


def functions(binary: Path, match: str) -> dict[str, list[tuple[int, str, str]]]:
    """Address, mnemonic and operands of the instructions of every function whose name matches."""
    out: dict[str, list[tuple[int, str, str]]] = {}
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", "-M", "intel", str(binary)]
    pattern, current = re.compile(match), None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := FUNCTION.match(line):
                name = found[1] if found[1] not in out else f"{found[1]} at {line.split()[0]}"
                current = out.setdefault(name, []) if pattern.search(name) else None
            elif current is not None and (found := LINE.match(line)):
                current.append((int(found[1], 16), found[2], found[3].split("#")[0].strip()))
    return out


def loops(code: list[tuple[int, str, str]]) -> list[list[tuple[int, str, str]]]:
    """The bodies of the innermost loops."""
    place = {address: i for i, (address, _, _) in enumerate(code)}
    spans = []
    for i, (address, name, operands) in enumerate(code):
        target = TARGET.match(operands)
        if name.startswith("j") and target and (to := int(target[1], 16)) <= address and to in place:
            spans.append((place[to], i))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return [code[a : b + 1] for a, b in inner]


def work(body: list[tuple[int, str, str]]) -> Counter[str]:
    """Products, loads, stores and instructions of a loop body."""
    n: Counter[str] = Counter()
    for _, name, operands in body:
        n["instructions"] += 1
        first, _, rest = operands.partition(",")
        width = next((w for r, w in WIDTH.items() if r in operands), 0)
        if name.startswith("vpdpbusd"):
            n["products"] += width
        elif name.startswith("vpmaddubsw"):
            n["byte products"] += width
        elif name == "tdpbssd":
            n["tiles"] += 1
        elif name.startswith(("vfm", "vfnm")):
            n["fma"] += width // 4
        if "[" in rest or (name.startswith(("cmp", "test")) and "[" in first):
            n["loads"] += 1
        if name.startswith(("vmov", "mov")) and "[" in first:
            n["stores"] += 1
            n["bytes stored"] += width
        if name.startswith("vpgather"):
            n["gathers"] += 1
    return n


def cycles(body: list[tuple[int, str, str]], cpu: str) -> dict[str, Any]:
    """llvm-mca's view of a body as an endless loop."""
    text = []
    for _, name, operands in body:
        if name.startswith("j") or name in ("call", "ret"):
            continue
        text.append(f"{name} {re.sub(r'<[^>]*>', '', operands)}")
    source = ".intel_syntax noprefix\n" + "\n".join(text) + "\n"
    command = ["llvm-mca", f"-mcpu={cpu}", "-iterations=200", "-json"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["llvm-mca failed"])[0]}
    report = json.loads(done.stdout)
    region = report["CodeRegions"][0]
    summary, pressure = region["SummaryView"], region["ResourcePressureView"]["ResourcePressureInfo"]
    names = report["TargetInfo"]["Resources"]
    last = max(p["InstructionIndex"] for p in pressure)
    ports = {
        names[p["ResourceIndex"]]: round(p["ResourceUsage"], 2)
        for p in pressure
        if p["InstructionIndex"] == last
    }
    busiest = sorted(ports.items(), key=lambda p: -p[1])[:3]
    return {
        "ports": summary["BlockRThroughput"],
        "simulated": round(summary["TotalCycles"] / summary["Iterations"], 1),
        "busiest": dict(busiest),
    }


def main() -> int:
    """Prints a line for every matching function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--match", default=INTERESTING)
    parser.add_argument("--cpu", default="icelake-server", help="the scheduling model of llvm-mca")
    parser.add_argument("--clock", type=float, default=2.7, help="GHz, for the rates")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name, code in sorted(functions(args.binary, args.match).items()):
        bodies = loops(code)
        if not bodies:
            continue
        counts = [(work(body), body) for body in bodies]

        def size(item: tuple[Counter[str], Any]) -> tuple[int, int]:
            n = item[0]
            return (n["products"] + n["byte products"] + n["fma"] + 4096 * n["tiles"], n["instructions"])

        n, body = max(counts, key=size)
        row: dict[str, Any] = {"function": re.sub(r"\[[0-9a-f]{16}\]", "", name)} | dict(n)
        row |= cycles(body, args.cpu) if not n["tiles"] else {"error": "tiles have no model"}
        if bound := row.get("ports"):
            for what, unit in (("products", 2), ("byte products", 2), ("fma", 2), ("bytes stored", 1)):
                if n[what]:
                    row[f"G {what}/s"] = round(unit * n[what] / bound * args.clock, 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
