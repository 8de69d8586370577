"""``ninfer-rs dequantize``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from .._files import new_file
from ..artifact import Artifact
from ..errors import UnsupportedError
from ..gguf import GgufTensor
from ..safetensors import SafetensorsTensor
from ..sources import SourceTensor
from ..tensor import Tensor
from . import _common as c
from ._sides import rows_at_a_time


@click.command()
@click.argument("file", type=c.Path)
@click.argument("tensor")
@click.option("-o", "--output", required=True, type=c.Path, help="The .npy file to write.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), help="Element type; float16 rounds once.")
@click.option("--rows", metavar="BEGIN:END", help="Only these rows (END not included).")
@click.option("--threads", type=click.IntRange(1), help="Threads; all cores by default.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
def command(
    file: str, tensor: str, output: str, dtype: str | None, rows: str | None, threads: int | None, force: bool
) -> None:
    """Write the values of TENSOR of FILE (GGUF, safetensors or .ninfer) as a .npy file, exactly, in bounded
    memory.

    float32 by default, int32 for int32 tensors. Plain numbers outside the registry keep their type.
    """
    with c.open_any(file) as source:
        entry = source[tensor]
        if isinstance(entry, SourceTensor):
            raise UnsupportedError(f"{file}: its arrays are plain numbers already: numpy.load reads them")
        if isinstance(entry, SafetensorsTensor) and entry.content not in ("values", "integers"):
            shape, kind, fill = _scaled(entry, dtype, threads)
        elif isinstance(entry, (GgufTensor, SafetensorsTensor)) and entry.format is None:
            shape, kind, fill = _plain(entry, dtype)
        else:
            shape, kind, fill = _encoded(
                entry if isinstance(entry, Tensor) else entry.tensor(), dtype, threads
            )
        begin, end = _range(rows, shape)
        if rows is not None:
            shape = (end - begin, *shape[1:])
        with new_file(output, force, "; --force replaces it") as temporary, c.progress("decoding") as step:
            out = np.lib.format.open_memmap(temporary, mode="w+", dtype=kind, shape=shape)
            per_row = max(1, int(np.prod(shape[1:], dtype=np.int64)))
            if not shape:
                fill(0, 1, out.reshape(1))
            piece = rows_at_a_time(per_row)
            for at in range(begin, end if shape else begin, piece):
                stop = min(end, at + piece)
                fill(at, stop, out[at - begin : stop - begin])
                if step:
                    step(stop - begin, end - begin)
            out.flush()
            del out
    kept = not isinstance(source, Artifact)
    click.echo(f"{output}: {kind} {shape} from {c.show(tensor)}{'' if kept else ' of the artifact'}")


_Fill = Callable[[int, int, Any], None]


def _encoded(
    tensor: Tensor, dtype: str | None, threads: int | None
) -> tuple[tuple[int, ...], np.dtype[Any], _Fill]:
    integer = tensor.format.name == "int32"
    if integer and dtype is not None:
        raise UnsupportedError(f"int32: integers do not decode to {dtype}")
    kind = np.dtype(np.int32) if integer else np.dtype(dtype or "float32")

    def fill(begin: int, end: int, out: Any) -> None:
        part = tensor.rows(begin, end) if tensor.ndim else tensor
        part.dequantize(out=np.asarray(out).reshape(part.shape), threads=threads)

    return tensor.shape, kind, fill


def _scaled(
    entry: SafetensorsTensor, dtype: str | None, threads: int | None
) -> tuple[tuple[int, ...], np.dtype[Any], _Fill]:
    """Codes with scales, as the checkpoint means them: matrices."""
    kind = np.dtype(dtype or "float32")

    def fill(begin: int, end: int, out: Any) -> None:
        values = entry.values((begin, end))
        part = Tensor.from_payload("fp32", values.shape, values, name=entry.name)
        part.dequantize(out=np.asarray(out).reshape(part.shape), threads=threads)

    entry.values((0, 0))  # why it cannot be read is said before a file is begun
    return entry.shape, kind, fill


def _plain(
    entry: GgufTensor | SafetensorsTensor, dtype: str | None
) -> tuple[tuple[int, ...], np.dtype[Any], _Fill]:
    values = entry.array()
    type_name = entry.type_name if isinstance(entry, GgufTensor) else entry.dtype
    if dtype is not None and values.dtype.kind != "f":
        raise UnsupportedError(f"{type_name} values are not written as {dtype}")
    wanted = dtype or ("float32" if type_name == "F16" else values.dtype.name)
    if np.dtype(wanted).itemsize < values.dtype.itemsize:
        raise UnsupportedError(f"{type_name} values are not rounded to {wanted}")

    def fill(begin: int, end: int, out: Any) -> None:
        out[...] = values[begin:end] if values.ndim else values

    return entry.shape, np.dtype(wanted), fill


def _range(rows: str | None, shape: tuple[int, ...]) -> tuple[int, int]:
    n = shape[0] if shape else 1
    if rows is None:
        return 0, n
    first, colon, last = rows.partition(":")
    try:
        begin, end = int(first or 0), int(last or n)
    except ValueError:
        raise click.BadParameter(f"{rows!r} is not BEGIN:END", param_hint="--rows") from None
    if not colon:
        raise click.BadParameter(f"{rows!r} is not BEGIN:END", param_hint="--rows")
    if not shape or not 0 <= begin < end <= n:
        raise click.BadParameter(
            f"{begin}..{end} are not rows of this tensor, which has {n}", param_hint="--rows"
        )
    return begin, end
