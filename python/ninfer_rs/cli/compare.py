"""``ninfer-rs compare``."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ..errors import NinferError
from . import _common as c
from ._sides import Opened, side


@click.command()
@click.argument("first", type=c.Path)
@click.argument("second", type=c.Path)
@click.option("--threads", type=click.IntRange(1), help="Threads; all cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(ctx: click.Context, first: str, second: str, threads: int | None, as_json: bool) -> None:
    """Compare the tensors of FIRST and SECOND by name: GGUF, safetensors, npy, npz and .ninfer, in any
    combination.

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


def _compare(a: Opened, b: Opened, name: str, threads: int | None) -> dict[str, Any]:
    try:
        x, y = side(a, name, threads), side(b, name, threads)
    except NinferError as error:
        return {"result": f"not comparable: {error}"}
    record: dict[str, Any] = {"first": x.format, "second": y.format}
    if x.size != y.size or x.shape[-1:] != y.shape[-1:]:
        return record | {"result": f"shapes differ: {x.shape}, {y.shape}"}
    if x.integers != y.integers:
        return record | {"result": "not comparable: one holds integers, the other values"}
    p, q = x.tensor, y.tensor
    if p is not None and q is not None and p.format is q.format and np.array_equal(p.payload, q.payload):
        return record | {"result": "identical"}
    squares = reference = largest = 0.0
    equal = True
    for begin, end in x.pieces():
        try:
            u, v = x.read(begin, end), y.read(begin, end)
        except NinferError as error:
            return record | {"result": f"not comparable: {error}"}
        if x.integers:
            equal = equal and bool((u == v).all())
            continue
        equal = equal and bool((u.view(np.uint32) == v.view(np.uint32)).all())
        wide, other = u.astype(np.float64), v.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.abs(wide - other)
        squares += float(np.square(difference).sum())
        reference += float(np.square(wide).sum())
        largest = max(largest, float(difference.max()))
    if equal:
        return record | {"result": "equal values"}
    if x.integers:
        return record | {"result": "integers differ"}
    relative = float(np.sqrt(squares / reference)) if reference else float("inf")
    return record | {"result": "different", "relative_error": relative, "largest_difference": largest}
