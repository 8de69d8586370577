"""``ninfer-rs compare``."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ..artifact import Artifact
from ..errors import NinferError
from ..gguf import GgufFile
from ..tensor import Tensor
from . import _common as c
from .verify import rows_at_a_time


@click.command()
@click.argument("first", type=c.Path)
@click.argument("second", type=c.Path)
@click.option("--threads", type=click.IntRange(1), help="Threads; all cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, first: str, second: str, threads: int | None, as_json: bool) -> None:
    """Compare the tensors of FIRST and SECOND (GGUF or .ninfer, in any combination) by name.

    Tensors with the same stored words are identical. Others of one shape are decoded: the relative error is
    the root mean square of the difference divided by that of FIRST. Where the bytes lie in the files plays no
    part. Exits with 1 unless all values are the same.
    """
    lines: list[dict[str, Any]] = []
    with c.open_any(first) as a, c.open_any(second) as b, c.progress("comparing") as step:
        # Objects of unknown formats count as tensors too: they are listed as not comparable.
        names = list(dict.fromkeys([r.name for r in c.rows(a)] + [r.name for r in c.rows(b)]))
        ours, theirs = {r.name for r in c.rows(a)}, {r.name for r in c.rows(b)}
        for at, name in enumerate(names):
            if name not in theirs or name not in ours:
                lines.append({"name": c.show(name), "result": f"only in {first if name in ours else second}"})
            else:
                lines.append({"name": c.show(name), **_compare(a, b, name, threads)})
            if step:
                step(at + 1, len(names))
    same = all(line["result"] in ("identical", "equal values") for line in lines)
    if as_json:
        c.print_json({"first": first, "second": second, "same": same, "tensors": lines})
    else:
        columns = [("tensor", "left"), ("first", "left"), ("second", "left"), ("result", "left")]
        columns += [("relative error", "right"), ("largest difference", "right")]
        c.table(
            "",
            columns,
            [
                [
                    line["name"],
                    line.get("first", ""),
                    line.get("second", ""),
                    line["result"],
                    f"{line['relative_error']:.3e}" if "relative_error" in line else "",
                    f"{line['largest_difference']:.3e}" if "largest_difference" in line else "",
                ]
                for line in lines
            ],
        )
    if not same:
        ctx.exit(1)


def _tensor(source: GgufFile | Artifact, name: str) -> Tensor:
    if isinstance(source, Artifact):
        return source[name]
    entry = source[name]
    if entry.type_name == "F16":
        from ..encoders import quantize

        return quantize(entry.array(), "fp32", "cast_direct", name=name)  # exact
    return entry.tensor()


def _compare(
    a: GgufFile | Artifact, b: GgufFile | Artifact, name: str, threads: int | None
) -> dict[str, Any]:
    try:
        x, y = _tensor(a, name), _tensor(b, name)
    except NinferError as error:
        return {"result": f"not comparable: {error}"}
    record: dict[str, Any] = {"first": x.format.name, "second": y.format.name}
    if x.size != y.size or x.shape[-1:] != y.shape[-1:]:
        return record | {"result": f"shapes differ: {x.shape}, {y.shape}"}
    if x.format is y.format and np.array_equal(x.payload, y.payload):
        return record | {"result": "identical"}
    if "int32" in (x.format.name, y.format.name):
        return record | {"result": "integers differ"}
    squares = reference = largest = 0.0
    equal = True
    k = x.shape[-1] if x.shape else 1
    for p, q in _pieces(x, y, k, threads):
        equal = equal and bool((p.view(np.uint32) == q.view(np.uint32)).all())
        wide, other = p.astype(np.float64), q.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.abs(wide - other)
        squares += float(np.square(difference).sum())
        reference += float(np.square(wide).sum())
        largest = max(largest, float(difference.max()))
    if equal:
        return record | {"result": "equal values"}
    relative = float(np.sqrt(squares / reference)) if reference else float("inf")
    return record | {"result": "different", "relative_error": relative, "largest_difference": largest}


def _pieces(x: Tensor, y: Tensor, k: int, threads: int | None) -> Any:
    """Pairs of decoded pieces of the same elements."""
    if x.ndim != 2 or y.ndim != 2:
        x, y = (t if t.ndim == 2 else _matrix(t, k) for t in (x, y))
    n = x.shape[0]
    step = -(-rows_at_a_time(k) // 128) * 128  # whole nvfp4 tiles
    for begin in range(0, n, step):
        end = min(n, begin + step)
        yield x.rows(begin, end).dequantize(threads=threads), y.rows(begin, end).dequantize(threads=threads)


def _matrix(t: Tensor, k: int) -> Tensor:
    """A direct tensor of any rank as rows of ``k``."""
    return Tensor.from_payload(t.format, (t.size // k, k), t.payload, name=t.name)
