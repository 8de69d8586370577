"""``ninfer-rs bench``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from .. import simd
from ..registry import FORMATS, Format
from ..tensor import Tensor
from . import _common as c


@click.command()
@click.option(
    "--format", "formats", multiple=True, type=click.Choice(list(FORMATS)), help="Formats; all by default."
)
@click.option("--rows", default=4096, show_default=True, type=click.IntRange(128), help="Rows of the weight.")
@click.option("--k", default=4096, show_default=True, type=click.IntRange(256), help="Elements per row.")
@click.option(
    "--columns", default=1, show_default=True, type=click.IntRange(1), help="Columns of the product."
)
@click.option("--simd", "isa", help="Instruction set to force; the best by default.")
@click.option("--threads", type=click.IntRange(1), help="Threads; all cores by default.")
@click.option("--seconds", default=0.2, show_default=True, type=float, help="Least time per measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    formats: tuple[str, ...],
    rows: int,
    k: int,
    columns: int,
    isa: str | None,
    threads: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure decoding and products of every format on random words, best of several runs.

    Decoding is given in GB/s of binary32 written, products in GB/s of weights read and in GFLOP/s. ROWS is
    rounded up to a multiple of 128 and K to one of 256, so that every format can take them.
    """
    rows, k = -(-rows // 128) * 128, -(-k // 256) * 256
    x = np.random.default_rng(1).standard_normal((columns, k), dtype=np.float32)
    lines: list[dict[str, Any]] = []
    with simd.use(isa):
        machine = simd.info()
        for name in formats or tuple(FORMATS):
            if name == "int32":
                continue
            tensor = random_tensor(FORMATS[name], rows, k)
            values = np.empty((rows, k), np.float32)
            out = np.empty((columns, rows), np.float32)
            line: dict[str, Any] = {"format": name, "bytes": tensor.nbytes}
            t = best(lambda: tensor.dequantize(out=values, threads=threads), seconds)  # noqa: B023
            line["decode_gb_per_s"] = values.nbytes / t / 1e9
            for activation in ("a16", "a8"):
                t = best(lambda: tensor.matmul(x, activation, out=out, threads=threads), seconds)  # noqa: B023
                line[f"{activation}_gb_per_s"] = tensor.nbytes / t / 1e9
                line[f"{activation}_gflop_per_s"] = 2 * rows * k * columns / t / 1e9
            lines.append(line)
    report = {
        "isa": machine["isa"],
        "threads": threads or machine["threads"],
        "rows": rows,
        "k": k,
        "columns": columns,
    }
    if as_json:
        c.print_json(report | {"formats": lines})
        return
    click.echo(", ".join(f"{key} {value}" for key, value in report.items()))
    names = ["decode GB/s", "a16 GB/s", "a16 GFLOP/s", "a8 GB/s", "a8 GFLOP/s"]
    keys = ["decode_gb_per_s", "a16_gb_per_s", "a16_gflop_per_s", "a8_gb_per_s", "a8_gflop_per_s"]
    cells = [[line["format"], *(f"{line[key]:.2f}" for key in keys)] for line in lines]
    c.table("", [("format", "left"), *((name, "right") for name in names)], cells)


def best(run: Callable[[], object], seconds: float) -> float:
    """Shortest of the runs that fit in ``seconds``, of three at least."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def random_tensor(fmt: Format, n: int, k: int, seed: int = 0) -> Tensor:
    """Random legal words: any code, scales around 2^-7."""
    rng = np.random.default_rng(seed)
    if fmt.category == "direct":
        values = rng.standard_normal((n, k), dtype=np.float32).view(np.uint32)
        words = (values >> 16).astype(np.uint16) if fmt.name == "bf16" else values
        return Tensor.from_words(fmt, (n, k), words=words)
    if fmt.category == "grouped" and fmt.group_size and fmt.code_min is not None and fmt.code_max is not None:
        codes = rng.integers(fmt.code_min, fmt.code_max, (n, k), np.int8, endpoint=True)
        scales = rng.integers(0x2000, 0x2400, (n, -(-k // fmt.group_size)), np.uint16)
        return Tensor.from_words(fmt, (n, k), codes=codes, scales=scales)
    if fmt.category == "block_scaled":
        packed = rng.integers(0, 256, (n, k // 2), np.uint8)
        scales8 = rng.integers(0x20, 0x60, (n, k // 16), np.uint8)
        return Tensor.from_words(
            fmt, (n, k), codes=packed, scales=scales8, divisors=np.array([64.0], np.float32)
        )
    if fmt.category == "row_scaled":
        fp8 = rng.integers(0, 0x7F, (n, k), np.uint8) | (rng.integers(0, 2, (n, k), np.uint8) << 7)
        word = 0x3C00 if fmt.name.endswith("bf16") else 0x2000
        return Tensor.from_words(fmt, (n, k), codes=fp8, scales=np.full(n, word, np.uint16))
    size = fmt.encoded_size((n, k))
    blocks = rng.integers(0, 256, (size // (fmt.block_bytes or 1), fmt.block_bytes or 1), np.uint8)
    for at in SCALE_AT[fmt.name]:
        blocks[:, at : at + 2] = (0x00, 0x20)
    if fmt.name == "gguf_iq1_m":  # the scale is spread over the top nibbles of the last four words
        blocks[:, 49::2] &= 0x0F
        blocks[:, 55] |= 0x20
    return Tensor.from_words(fmt, (n, k), blocks=blocks.reshape(n, -1))


#: Where the binary16 scales of a block are, in bytes (format specification, ggml block types).
SCALE_AT: dict[str, tuple[int, ...]] = {
    **{
        f"gguf_{name}": (0,)
        for name in ("q8_0", "q4_0", "q5_0", "q2_0", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
    },
    **{f"gguf_{name}": (0,) for name in ("iq3_s", "iq1_s", "iq4_nl", "iq4_xs")},
    "gguf_q2_k": (80, 82),
    "gguf_q3_k": (108,),
    "gguf_q4_k": (0, 2),
    "gguf_q5_k": (0, 2),
    "gguf_q6_k": (208,),
    "gguf_iq1_m": (),
}
