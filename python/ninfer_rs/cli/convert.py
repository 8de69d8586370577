"""``ninfer-rs convert``."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from .. import artifact
from ..errors import FileFormatError
from ..gguf import GgufFile
from . import _common as c


@click.command()
@click.argument("model", type=c.Path)
@click.argument("output", type=c.Path)
@click.option(
    "--skip-unsupported", is_flag=True, help="Leave out tensors that cannot be converted, and list them."
)
@click.option(
    "--file-limit", type=click.IntRange(1), metavar="BYTES", help="Split over files of at most so many bytes."
)
@click.option("--dry-run", is_flag=True, help="Plan only: what every tensor becomes, and the size.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    output: str,
    skip_unsupported: bool,
    file_limit: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Convert MODEL, a GGUF file (any file of a split set), to the .ninfer artifact OUTPUT.

    Blocks are copied byte for byte; F16 becomes fp32 exactly. Everything is planned before the first byte is
    written: tensors that cannot be converted are all listed, and refused unless --skip-unsupported. OUTPUT
    appears complete or not at all, and is never overwritten.
    """
    source = c.open_any(model)
    if not isinstance(source, GgufFile):
        raise FileFormatError(f"{model}: a .ninfer artifact already; expected a GGUF file", model, 0, "GGUF")
    with source:
        plan = artifact.plan(source, skip_unsupported=skip_unsupported)
        report: dict[str, Any] = {
            "source": model,
            "output": output,
            "tensors": len(plan.tensors),
            "payload_bytes": plan.payload_bytes,
            "skipped": [{"name": s.name, "type": s.source_type, "reason": s.reason} for s in plan.skipped],
        }
        if not dry_run:
            started = time.perf_counter()
            try:
                with c.progress("converting") as step:
                    written = artifact.convert(
                        source,
                        output,
                        skip_unsupported=skip_unsupported,
                        file_limit=file_limit,
                        progress=step,
                    )
            except KeyboardInterrupt:
                # It may come when the last file has just been published; what is published is complete.
                state = f"{output} is complete" if os.path.exists(output) else "nothing was written"
                click.echo(f"interrupted; {state}", err=True)
                ctx.exit(130)
            report |= {
                "files": list(written.files),
                "bytes": written.bytes,
                "artifact_id": written.artifact_id.hex(),
                "seconds": time.perf_counter() - started,
            }
    if as_json:
        if dry_run:
            report["plan"] = [
                {
                    "name": c.show(t.name),
                    "from": t.source_type,
                    "format": t.format,
                    "shape": t.shape,
                    "bytes": t.bytes,
                }
                for t in plan.tensors
            ]
        c.print_json(report)
        return
    for s in plan.skipped:
        click.echo(f'left out: tensor "{c.show(s.name)}" of type {s.source_type}: {s.reason}')
    if dry_run:
        columns = [
            ("tensor", "left"),
            ("from", "left"),
            ("to", "left"),
            ("shape", "left"),
            ("bytes", "right"),
        ]
        lines = [
            [c.show(t.name), t.source_type, t.format, " x ".join(map(str, t.shape)), str(t.bytes)]
            for t in plan.tensors
        ]
        c.table("Plan", columns, lines)
        click.echo(f"{len(plan.tensors)} tensors, {c.size_text(plan.payload_bytes)}; nothing was written")
        return
    seconds = report["seconds"]
    speed = report["bytes"] / 1e6 / seconds if seconds else 0.0
    many = f" in {len(report['files'])} files" if len(report["files"]) > 1 else ""
    click.echo(
        f"{os.path.basename(output)}: {len(plan.tensors)} tensors, {c.size_text(report['bytes'])}{many} "
        f"in {seconds:.2f} s ({speed:.0f} MB/s)"
    )
