"""``ninfer-rs formats``."""

from __future__ import annotations

from typing import Any

import click

from .. import gguf
from ..encoders import ENCODERS
from ..registry import FORMATS
from . import _common as c


@click.command()
@click.option("--ggml", is_flag=True, help="List the ggml types instead, registered or not.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(ggml: bool, as_json: bool) -> None:
    """List the registered formats and the methods that produce them, or the ggml types."""
    records = _ggml() if ggml else _formats()
    if as_json:
        c.print_json(records)
        return
    names = list(records[0])
    numbers = {"bits_per_weight", "ggml_type", "block_values", "block_bytes", "number"}
    columns = [(n.replace("_", " "), "right" if n in numbers else "left") for n in names]
    c.table("", columns, [[_text(r[n]) for n in names] for r in records])


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)


def _formats() -> list[dict[str, Any]]:
    return [
        {
            "format": f.name,
            "category": f.category,
            "layout": f.layout,
            "bits_per_weight": f.bits_per_weight,
            "ggml_type": f.ggml_type,
            "methods": [name for name, formats in ENCODERS.items() if f.name in formats],
        }
        for f in FORMATS.values()
    ]


def _ggml() -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "type": t.name,
            "block_values": t.block_values,
            "block_bytes": t.block_bytes,
            "format": t.format.name if t.format is not None else None,
        }
        for number, t in gguf.TYPES.items()
    ]
