"""The main job on one file: convert a GGUF to .ninfer, verify it, decode it, multiply with it, and say what
happened.

Usage: python tools/demo.py [MODEL.gguf]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import ninfer_rs as nr
from ninfer_rs import oracle

ROOT = Path(__file__).resolve().parent.parent
ORACLE_ROWS = 16


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equality of bits, NaN payloads aside."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    kind = np.uint32 if a.dtype.itemsize == 4 else np.uint16
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return a.shape == b.shape and bool(((a.view(kind) == b.view(kind)) | both_nan).all())


def convert(model: Path, out: Path) -> None:
    from ninfer_rs.cli import main

    main(["convert", str(model), str(out)], standalone_mode=False)


def main() -> int:
    console = Console()
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "examples" / "sample.gguf"
    if not model.exists():
        console.print(f"[red]{model} does not exist[/red]")
        return 2
    out_dir = ROOT / "demo-out"
    out_dir.mkdir(exist_ok=True)
    out = out_dir / (model.stem + ".ninfer")
    out.unlink(missing_ok=True)  # the writer never overwrites; this one is the demo's own

    started = time.perf_counter()
    convert(model, out)
    seconds = time.perf_counter() - started

    failed: list[str] = []

    def check(what: str, ok: bool) -> str:
        if not ok:
            failed.append(what)
        return "[green]yes[/green]" if ok else "[red]NO[/red]"

    table = Table(title=f"{model.name} -> {out.relative_to(ROOT)}")
    table.add_column("format", no_wrap=True)
    for column in ("tensors", "MB", "bits", "bytes", "valid", "decode", "a8"):
        table.add_column(column, justify="right")

    artifact = nr.artifact.open(str(out))
    by_format: dict[str, list[str]] = {}
    with nr.gguf.open(str(model)) as g:
        for name in g:
            by_format.setdefault(artifact[name].format.name, []).append(name)
        rng = np.random.default_rng(1)
        for fmt, names in sorted(by_format.items()):
            tensors = [artifact[n] for n in names]
            equal = all(
                same(t.dequantize().astype(np.float16), g[n].array())  # float16 is stored as float32, exactly
                if g[n].type_name == "F16"
                else t.payload.tobytes() == g[n].blocks.tobytes()
                for n, t in zip(names, tensors, strict=True)
            )
            valid = all(not t.violations(limit=1) for t in tensors)
            t = min(tensors, key=lambda t: (len(t.shape) != 2, t.nbytes))
            rows = t.rows(0, min(ORACLE_ROWS, t.shape[0])) if len(t.shape) == 2 else t
            payload = np.frombuffer(rows.payload, np.uint8)
            decoded = same(rows.dequantize(), oracle.dequantize(fmt, rows.shape, payload))
            product = "-"
            if len(t.shape) == 2 and fmt != "int32":
                x = rng.standard_normal((2, t.shape[1]), dtype=np.float32)
                ours = rows.matmul(x, activation="a8")
                product = check(
                    f"{fmt} product", same(ours, oracle.matmul(fmt, rows.shape, payload, x, activation="a8"))
                )
            size = sum(t.nbytes for t in tensors)
            weights = sum(int(np.prod(t.shape, dtype=np.int64)) for t in tensors)
            table.add_row(
                fmt,
                str(len(tensors)),
                f"{size / 1e6:.3f}",
                f"{size * 8 / weights:.4g}",
                check(f"{fmt} bytes", equal),
                check(f"{fmt} validity", valid),
                check(f"{fmt} decode", decoded),
                product,
            )
    console.print(table)
    size = out.stat().st_size
    info = nr.simd.info()
    console.print(
        f"{sum(map(len, by_format.values()))} tensors, {size / 1e6:.2f} MB written in {seconds:.2f} s "
        f"({size / 1e6 / seconds:.0f} MB/s); kernels: {info['isa']}, {info['threads']} threads"
    )
    if failed:
        console.print(f"[red]{len(failed)} checks failed:[/red] {', '.join(failed)}")
        return 1
    console.print(
        "[green]all checks passed[/green]: payloads equal the GGUF's bytes, every word is valid, decoded "
        f"values and products (first {ORACLE_ROWS} rows of the smallest tensor of each format) "
        "equal the independent numpy oracle "
        "bit for bit"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
