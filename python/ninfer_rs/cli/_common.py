"""What the commands share: opening by content, sizes and tables, progress bars."""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .. import gguf
from .._files import printable
from ..errors import FileFormatError
from ..registry import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..artifact import Artifact
    from ..gguf import GgufFile
    from ..safetensors import SafetensorsFile
    from ..sources import SourceFile

Path = click.Path(exists=False, dir_okay=True, path_type=str)
"""A path argument; whether the file is there is for the reader to say."""


def open_any(path: str) -> GgufFile | Artifact | SafetensorsFile | SourceFile:
    """Opens a file by its first bytes, whatever its name: GGUF, .ninfer, safetensors (files, indexes,
    folders), npy and npz."""
    if not os.path.isdir(path):
        head = first_bytes(path, 9)
        if head[:4] == b"GGUF":
            return gguf.open(path)
        if head[:6] in (b"NINFER", b"NINPRT"):
            from .. import artifact

            return artifact.open(path)
        if head[:6] == b"\x93NUMPY" or head[:4] == b"PK\3\4":
            from .. import sources

            return sources.open(path)
        # A length below 2^32 and the header's first byte; an index is JSON.
        if not (head[4:] == b"\0\0\0\0{" or head.lstrip()[:1] == b"{" or path.endswith(".safetensors")):
            wanted = "GGUF, safetensors, npy, npz or .ninfer"
            raise FileFormatError(
                f"{path}: byte 0: the file begins with {head[:6]!r}; expected {wanted}", path, 0, wanted
            )
    from .. import safetensors

    return safetensors.open(path)


def first_bytes(path: str, count: int) -> bytes:
    """The first bytes of a regular file: opening a pipe could block for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileFormatError(f"{path}: not a regular file", path, None, "a regular file")
    with builtins.open(path, "rb") as file:
        return file.read(count)


class Row(NamedTuple):
    """One tensor of any kind of file. ``format`` is a registered name, or what the file calls the type."""

    name: str
    format: str
    shape: tuple[int, ...]
    elements: int
    bytes: int | None
    offset: int | None
    supported: bool
    reason: str | None = None


def rows(source: GgufFile | Artifact | SafetensorsFile | SourceFile) -> list[Row]:
    """All tensors of a file, in file order."""
    if isinstance(source, gguf.GgufFile):
        found = []
        for t in source.values():
            name = t.format.name if t.format is not None else t.type_name
            supported = (t.format is not None or t.type_name == "F16") and t.nbytes != 0
            found.append(Row(t.name, name, t.shape, t.size, t.nbytes, t.offset, supported))
        return found
    from ..artifact import Artifact

    found = []
    if not isinstance(source, Artifact):
        from ..safetensors import SafetensorsTensor

        for e in source.values():
            dtype, offset = (e.dtype, e.offset) if isinstance(e, SafetensorsTensor) else (e.type_name, None)
            # Codes with their scales have a name of their own even where no format holds them.
            kind = dtype if e.content in ("values", "integers", "unsupported") else e.content
            name = e.format.name if e.format is not None else kind
            supported = e.content != "unsupported" and e.size != 0
            found.append(Row(e.name, name, e.shape, e.size, e.nbytes, offset, supported, e.reason))
        return found
    for o in source.objects.values():
        if o.kind != "tensor" or o.shape is None or o.format is None:
            continue
        elements = 1
        for d in o.shape:
            elements *= d
        known = FORMATS.get(o.format)
        supported = known is not None and known.layout == o.layout
        found.append(Row(o.id, o.format, o.shape, elements, o.bytes, o.offset, supported))
    return found


def histogram(tensors: Sequence[Row]) -> list[dict[str, Any]]:
    """Tensors, elements, bytes and bits per weight by format, most bytes first."""
    groups: dict[str, list[Row]] = {}
    for row in tensors:
        groups.setdefault(row.format, []).append(row)
    table = []
    for name, members in groups.items():
        sized = [r.bytes for r in members if r.bytes is not None]
        size = sum(sized) if len(sized) == len(members) else None
        elements = sum(r.elements for r in members)
        bits = size * 8 / elements if size is not None and elements else None
        table.append(
            {
                "format": name,
                "tensors": len(members),
                "elements": elements,
                "bytes": size,
                "bits_per_weight": bits,
            }
        )
    return sorted(table, key=lambda r: (-(r["bytes"] or 0), r["format"]))


def size_text(n: int | None) -> str:
    """A byte count for people."""
    if n is None:
        return "unknown"
    if n < 10_000:
        return f"{n} B"
    value = float(n)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 1000 or unit == "TB":
            return f"{value:.2f} {unit}"
    return str(n)


def table(title: str, columns: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]]) -> None:
    """Prints a table: styled on a terminal, plain and uncut when piped. ``columns`` are (name, "left" or
    "right")."""
    if not sys.stdout.isatty():
        widths = [max(len(name), *(len(line[i]) for line in lines), 0) for i, (name, _) in enumerate(columns)]
        if title:
            click.echo(title)
        for line in [[name for name, _ in columns], *lines]:
            cells = (
                cell.ljust(w) if side == "left" else cell.rjust(w)
                for cell, w, (_, side) in zip(line, widths, columns, strict=True)
            )
            click.echo("  ".join(cells).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    t = Table(title=title or None, title_justify="left", header_style="bold")
    for name, side in columns:
        t.add_column(name, justify="left" if side == "left" else "right", overflow="fold")
    for line in lines:
        t.add_row(*(Text(cell) for cell in line))
    Console().print(t)


def show(name: str) -> str:
    """A name for the terminal."""
    return printable(name)


def print_json(value: Any) -> None:
    """Prints JSON for programs: ASCII, one document."""
    click.echo(json.dumps(_strict(value), indent=2, allow_nan=False))


def _strict(value: Any) -> Any:
    """JSON has no word for NaN and infinities: they become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(v) for v in value]
    return value


@contextmanager
def progress(what: str, enabled: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, if that is a terminal; yields a callback of bytes done and total."""
    if not (enabled and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        "[progress.description]{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
