"""``ninfer-rs convert``."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import click

from .. import artifact, conversion
from ..errors import FileFormatError
from ..gguf import GgufFile
from . import _common as c

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class _Size(click.ParamType):  # type: ignore[type-arg]  # generic in some versions of click only
    """A number of bytes: ``256MB``, ``1.5GiB``, ``100000``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmg]i?)?b?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size like 256MB, 1.5GiB or 100000", param, ctx)
        size = int(float(found[1]) * _UNITS[(found[2] or "").lower()])
        if size < 1:
            self.fail("a size is at least one byte", param, ctx)
        return size


@click.command()
@click.argument("model", type=c.Path)
@click.argument("output", type=c.Path)
@click.option(
    "--recipe", type=c.Path, metavar="FILE", help="Rules in TOML: which tensor becomes what, and how."
)
@click.option("--imatrix", type=c.Path, metavar="FILE", help="Importance matrix (GGUF or legacy .dat).")
@click.option("--memory", type=_Size(), metavar="SIZE", help="Most memory for buffers (default 256 MiB).")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads (default: all cores).")
@click.option("--resume", is_flag=True, help="Keep what is done when interrupted, and go on from there.")
@click.option("--report", type=c.Path, metavar="FILE", help="Write a JSON report: digests, errors, methods.")
@click.option(
    "--skip-unsupported", is_flag=True, help="Leave out tensors that cannot be converted, and list them."
)
@click.option("--file-limit", type=_Size(), metavar="SIZE", help="Split over files of at most so many bytes.")
@click.option("--dry-run", is_flag=True, help="Plan only: what every tensor becomes, why, and the size.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    output: str,
    recipe: str | None,
    imatrix: str | None,
    memory: int | None,
    threads: int | None,
    resume: bool,
    report: str | None,
    skip_unsupported: bool,
    file_limit: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Convert MODEL to the .ninfer artifact OUTPUT.

    MODEL is a GGUF file (any file of a split set) or safetensors (a file, an index, or a folder). Without a
    recipe every tensor keeps its words: blocks are copied byte for byte, F16 becomes fp32 exactly. Everything
    is planned before the first byte is written: what cannot be done is all listed, and refused. OUTPUT
    appears complete or not at all, and is never overwritten.
    """
    by_recipe = any(option is not None for option in (recipe, imatrix, memory, threads, report)) or resume
    if by_recipe or not _is_gguf(model):
        options = _Options(recipe, imatrix, memory, threads, resume, report, skip_unsupported, file_limit)
        _by_recipe(ctx, model, output, options, dry_run, as_json)
    else:
        _by_copy(ctx, model, output, skip_unsupported, file_limit, dry_run, as_json)


def _is_gguf(model: str) -> bool:
    if os.path.isdir(model):
        return False
    head = c.first_bytes(model, 6)
    if head in (b"NINFER", b"NINPRT"):
        raise FileFormatError(f"{model}: a .ninfer artifact already; expected a model", model, 0, "a model")
    return head[:4] == b"GGUF"


class _Options:
    """The options of a conversion by recipe."""

    def __init__(
        self,
        recipe: str | None,
        imatrix: str | None,
        memory: int | None,
        threads: int | None,
        resume: bool,
        report: str | None,
        skip_unsupported: bool,
        file_limit: int | None,
    ) -> None:
        self.plan: dict[str, Any] = {
            "imatrix": imatrix,
            "skip_unsupported": skip_unsupported,
            "file_limit": file_limit,
        }
        self.recipe = recipe
        self.run: dict[str, Any] = {
            "memory": memory,
            "threads": threads,
            "resume": resume,
            "report": report,
        }


def _by_recipe(
    ctx: click.Context, model: str, output: str, options: _Options, dry_run: bool, as_json: bool
) -> None:
    plan = conversion.plan(model, options.recipe, **options.plan)
    if dry_run:
        if as_json:
            c.print_json(plan.to_json())
        else:
            _print_plan(plan)
        return
    for warning in plan.warnings:
        click.echo(f"warning: {c.show(warning)}", err=True)
    started = time.perf_counter()
    try:
        with c.progress("converting") as step:
            done = conversion.convert(plan, output, progress=step, **options.run)
    except KeyboardInterrupt:
        state = "run the same command again to go on" if options.run["resume"] else "nothing was written"
        state = f"{output} is complete" if os.path.exists(output) else state
        click.echo(f"interrupted; {state}", err=True)
        ctx.exit(130)
    seconds = time.perf_counter() - started
    if as_json:
        c.print_json({"output": output, "seconds": seconds, **done.report})
        return
    _print_done(output, len(plan.tensors), done.bytes, len(done.files), seconds, plan.bits_per_weight)


def _print_plan(plan: conversion.Plan) -> None:
    columns = [
        ("tensor", "left"),
        ("from", "left"),
        ("to", "left"),
        ("method", "left"),
        ("shape", "left"),
        ("bytes", "right"),
        ("bits/w", "right"),
        ("why", "left"),
    ]
    c.table("Plan", columns, plan.table())
    document = plan.to_json()
    for line in document["skipped"]:
        click.echo(f"left out: {c.show(line)}")
    for line in document["dropped"]:
        click.echo(f"dropped: {c.show(line)}")
    for line in plan.warnings:
        click.echo(f"warning: {c.show(line)}")
    click.echo(
        f"{len(plan.tensors)} tensors, {c.size_text(plan.payload_bytes)}, "
        f"{plan.bits_per_weight:.3f} bits per weight; nothing was written"
    )


def _print_done(
    output: str, tensors: int, size: int, files: int, seconds: float, bits: float | None = None
) -> None:
    speed = size / 1e6 / seconds if seconds else 0.0
    many = f" in {files} files" if files > 1 else ""
    weight = "" if bits is None else f", {bits:.3f} bits per weight"
    click.echo(
        f"{os.path.basename(output)}: {tensors} tensors, {c.size_text(size)}{many}{weight} "
        f"in {seconds:.2f} s ({speed:.0f} MB/s)"
    )


def _by_copy(
    ctx: click.Context,
    model: str,
    output: str,
    skip_unsupported: bool,
    file_limit: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """The plain conversion of a GGUF model, which copies from file to file."""
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
    _print_done(output, len(plan.tensors), report["bytes"], len(report["files"]), report["seconds"])
