"""``ninfer-rs inspect``."""

from __future__ import annotations

import hashlib
from typing import Any

import click

from .._arrays import U8
from ..artifact import Artifact
from ..gguf import GgufFile, MetadataArray
from ..safetensors import SafetensorsFile
from ..sources import SourceFile
from . import _common as c

Source = GgufFile | Artifact | SafetensorsFile | SourceFile

#: Longest array that is listed in full.
SHORT = 16
#: Longest string that is shown in the metadata table, in characters.
TEXT = 100


@click.command()
@click.argument("file", type=c.Path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--metadata/--no-metadata", default=True, help="List metadata (GGUF, safetensors).")
@click.option("--tensors/--no-tensors", default=True, help="List every tensor.")
@click.option("--sha256", is_flag=True, help="Hash the bytes of every tensor; offsets do not matter to it.")
@click.option(
    "--require-supported",
    is_flag=True,
    help="Exit with 1 and list the tensors that no registered format can hold.",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    as_json: bool,
    metadata: bool,
    tensors: bool,
    sha256: bool,
    require_supported: bool,
) -> None:
    """Show header, formats and tensors of FILE: a GGUF model (any file of a split set), a safetensors file,
    index or folder, a npy or npz file, or a .ninfer artifact."""
    with c.open_any(file) as source:
        if sha256 and isinstance(source, SourceFile):
            raise click.UsageError("--sha256 is for GGUF, safetensors and .ninfer files")
        found = c.rows(source)
        hashes = _hashes(source, found) if sha256 else {}
        header = _header(source)
        warnings = [] if isinstance(source, Artifact) else source.warnings
        unsupported = [r for r in found if not r.supported]
        if as_json:
            c.print_json(
                {
                    **header,
                    "metadata": _metadata(source) if metadata else None,
                    "histogram": c.histogram(found),
                    "tensors": [_record(r, hashes) for r in found] if tensors else None,
                    "unsupported": [c.show(r.name) for r in unsupported],
                    "warnings": warnings,
                }
            )
        else:
            _print(source, header, found, hashes, metadata, tensors)
            for warning in warnings:
                click.echo(f"warning: {warning}")
    if unsupported and require_supported:
        for r in unsupported:
            why = f": {c.show(r.reason)}" if r.reason else ""
            click.echo(f'unsupported: tensor "{c.show(r.name)}" of type {r.format}{why}', err=True)
        ctx.exit(1)


def _record(row: c.Row, hashes: dict[str, str]) -> dict[str, Any]:
    record = row._asdict() | {"name": c.show(row.name), "shape": list(row.shape)}
    if hashes:
        record["sha256"] = hashes.get(row.name)
    return record


def _hashes(source: Source, found: list[c.Row]) -> dict[str, str]:
    digests = {}
    total = sum(r.bytes or 0 for r in found)
    done = 0
    with c.progress("hashing") as step:
        for r in found:
            if r.bytes is None or (isinstance(source, Artifact) and not r.supported):
                continue
            digest = hashlib.sha256()
            for data in _bytes(source, r.name):
                flat = data.reshape(-1)
                for at in range(0, flat.size, 1 << 24):
                    digest.update(flat[at : at + (1 << 24)].data)
            digests[r.name] = digest.hexdigest()
            done += r.bytes
            if step:
                step(done, total)
    return digests


def _bytes(source: Source, name: str) -> list[U8]:
    """What is hashed: the stored bytes, of quantised safetensors the codes and then the scales."""
    if isinstance(source, GgufFile):
        return [source[name].blocks]
    if isinstance(source, Artifact):
        return [source.payload(name)]
    if isinstance(source, SourceFile):
        return []
    tensor = source[name]
    return [tensor.codes.data, *(source.stored[n].data for n in tensor.companions)]


def _header(source: Source) -> dict[str, Any]:
    if isinstance(source, GgufFile):
        return _gguf_header(source)
    if isinstance(source, SourceFile):
        files = list(source.files)
        return {"kind": source.kind, "path": source.path, "files": files, "file_bytes": source.file_bytes}
    return _artifact_header(source) if isinstance(source, Artifact) else _safetensors_header(source)


def _safetensors_header(s: SafetensorsFile) -> dict[str, Any]:
    return {
        "kind": "safetensors",
        "path": s.path,
        "files": list(s.files),
        "file_bytes": s.file_bytes,
        "quant_method": s.quant_method,
        "stored": len(s.stored),
        "unused": list(s.unused),
    }


def _gguf_header(g: GgufFile) -> dict[str, Any]:
    return {
        "kind": "gguf",
        "path": g.path,
        "files": list(g.files),
        "file_bytes": g.file_bytes,
        "version": g.version,
        "alignment": g.alignment,
        "metadata_keys": len(g.metadata),
    }


def _artifact_header(a: Artifact) -> dict[str, Any]:
    resources = {o.id: o.bytes for o in a.objects.values() if o.kind == "resource"}
    return {
        "kind": "ninfer",
        "path": a.path,
        "files": list(a.files),
        "payload_bytes": a.payload_bytes,
        "version": 3,
        "artifact_id": a.artifact_id.hex(),
        "components": list(a.components),
        "bindings": len(a.bindings),
        "uses": len(a.uses),
        "resources": resources,
    }


def _metadata(source: Source) -> dict[str, Any]:
    if isinstance(source, SourceFile):
        return {}
    if not isinstance(source, GgufFile):
        return dict(source.metadata)
    values: dict[str, Any] = {}
    for key in source.metadata:
        value = source.metadata[key]
        if isinstance(value, MetadataArray):
            kind = source.metadata.type(key)
            value = value.tolist() if len(value) <= SHORT else {"type": kind, "length": len(value)}
        values[c.show(key)] = _plain(value)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex(), "text": value.decode("utf-8", "replace")}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, MetadataArray):
        shown = ", ".join(_text(v) for v in value[:4])
        return f"[{shown}{', ...' if len(value) > 4 else ''}] ({len(value)})"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, list):
        return f"[{len(value)} arrays]"
    text = c.show(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT else text[:TEXT] + "..."


def _print(
    source: Source,
    header: dict[str, Any],
    found: list[c.Row],
    hashes: dict[str, str],
    metadata: bool,
    tensors: bool,
) -> None:
    size = sum(r.bytes or 0 for r in found)
    for key, value in header.items():
        if isinstance(value, (list, dict)):
            items = (
                value if isinstance(value, list) else [f"{k} ({c.size_text(v)})" for k, v in value.items()]
            )
            value = ", ".join(c.show(str(i)) for i in items) or "none"
        elif key.endswith("_bytes"):
            value = f"{value} ({c.size_text(value)})"
        click.echo(f"{key:16} {c.show(str(value))}")
    click.echo(f"{'tensors':16} {len(found)}, {size} bytes ({c.size_text(size)})\n")
    if metadata and isinstance(source, GgufFile):
        lines = [[c.show(k), source.metadata.type(k), _text(source.metadata[k])] for k in source.metadata]
        c.table("Metadata", [("key", "left"), ("type", "left"), ("value", "left")], lines)
        click.echo()
    if metadata and isinstance(source, SafetensorsFile) and source.metadata:
        lines = [[c.show(k), _text(v)] for k, v in source.metadata.items()]
        c.table("Metadata", [("key", "left"), ("value", "left")], lines)
        click.echo()
    lines = [
        [
            row["format"],
            str(row["tensors"]),
            str(row["elements"]),
            c.size_text(row["bytes"]),
            f"{row['bits_per_weight']:.4f}" if row["bits_per_weight"] is not None else "unknown",
        ]
        for row in c.histogram(found)
    ]
    columns = [("format", "left"), ("tensors", "right"), ("elements", "right"), ("size", "right")]
    c.table("Formats", [*columns, ("bits/weight", "right")], lines)
    if tensors:
        click.echo()
        named = [
            ("tensor", "left"),
            ("format", "left"),
            ("shape", "left"),
            ("bytes", "right"),
            ("offset", "right"),
        ]
        lines = [
            [
                c.show(r.name),
                r.format if r.supported else f"{r.format} (unsupported)",
                " x ".join(map(str, r.shape)) or "scalar",
                str(r.bytes) if r.bytes is not None else "unknown",
                str(r.offset) if r.offset is not None else "",
                *([hashes.get(r.name, "unreadable")] if hashes else []),
            ]
            for r in found
        ]
        c.table("Tensors", [*named, *([("sha256", "left")] if hashes else [])], lines)
