"""``ninfer-rs verify``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from ..artifact import Artifact
from ..errors import NinferError
from ..gguf import GgufFile
from ..safetensors import SafetensorsFile
from ..sources import SourceFile
from . import _common as c
from ._sides import Side, side


@click.command()
@click.argument("file", type=c.Path)
@click.option(
    "--against", type=c.Path, help="The GGUF model that the artifact was converted from: compare all bytes."
)
@click.option(
    "--values/--no-values", default=True, help="Check every word (default), or structure and sizes only."
)
@click.option(
    "--require-finite", is_flag=True, help="Count infinite and NaN values of legal words as problems."
)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="Violations shown per tensor."
)
@click.option("--threads", type=click.IntRange(1), help="Threads; all cores by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    against: str | None,
    values: bool,
    require_finite: bool,
    limit: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check FILE, a .ninfer artifact or a model (GGUF, safetensors, npy, npz): structure, sizes, every
    validity rule of every word.

    Infinite and NaN values are legal in models, and in bf16, fp32 and gguf formats; they are counted per
    tensor. For a GGUF model, whatever llama.cpp's own reader would refuse is listed as a warning. Tensors of
    safetensors and numpy files that cannot be read, such as FP8 codes without their scale, are problems.
    """
    problems: list[str] = []
    notes: list[str] = []
    report: dict[str, Any] = {"path": file}
    with c.open_any(file) as source:
        if isinstance(source, Artifact):
            structure = source.verify_structure()
            problems += structure.problems
            notes += structure.notes
            report["unused_bytes"] = structure.unused_bytes
            report["tensors"] = len(source)
        else:
            notes += source.warnings
            report["tensors"] = len(source)
            if against is not None:
                raise click.UsageError("--against is for artifacts; compare takes any two files")
        if values:
            checked = (
                _artifact_values(source, limit, threads, problems)
                if isinstance(source, Artifact)
                else _source_values(source, threads, notes, problems)
            )
            report["checked_bytes"], non_finite = checked
            report["non_finite"] = non_finite
            target = problems if require_finite else notes
            for name, count in non_finite.items():
                target.append(f'tensor "{c.show(name)}": {count}')
        if against is not None and isinstance(source, Artifact):
            with _model(against) as model, c.progress("comparing") as step:
                compared = source.compare(model, progress=step)
            report["compared"] = {
                "equal": compared.equal,
                "bytes": compared.bytes,
                "skipped": compared.skipped,
            }
            problems += [f"differs from {against}: {text}" for _, text in compared.differences]
            notes += [f'tensor "{c.show(name)}" was left out on purpose' for name in compared.skipped]
    report["problems"] = problems
    report["notes"] = notes
    report["ok"] = not problems
    if as_json:
        c.print_json(report)
    else:
        for text in notes:
            click.echo(f"note: {c.show(text)}")
        for text in problems:
            click.echo(f"problem: {c.show(text)}")
        compared_text = ""
        if "compared" in report:
            compared_text = f", {report['compared']['equal']} tensors equal to {against}"
        verdict = f"{len(problems)} problems" if problems else "fine"
        click.echo(f"{c.show(file)}: {report['tensors']} tensors{compared_text}: {verdict}")
    if problems:
        ctx.exit(1)


def _model(path: str) -> GgufFile:
    model = c.open_any(path)
    if isinstance(model, GgufFile):
        return model
    model.close()
    raise click.UsageError(f"{path} is no GGUF model; ninfer-rs compare compares tensors of any two files")


def _artifact_values(
    source: Artifact, limit: int, threads: int | None, problems: list[str]
) -> tuple[int, dict[str, str]]:
    with c.progress("checking values") as step:
        report = source.verify_values(limit, threads, step)
    # What cannot be checked has been reported as a problem of the structure.
    problems += [p for p in report.problems if p not in problems]
    non_finite = {}
    for t in report.tensors:
        problems += [f'tensor "{c.show(t.id)}" ({t.format}): {v}' for v in t.violations]
        if t.more:
            problems.append(f'tensor "{c.show(t.id)}": more violations than the {limit} shown')
        if t.non_finite is not None:
            n = t.non_finite
            plural = "s" if n.count != 1 else ""
            non_finite[t.id] = (
                f"{n.count} {n.unit}{plural} not finite, the first in row {n.row}, {n.unit} {n.index}"
            )
    return report.bytes, non_finite


def _source_values(
    source: GgufFile | SafetensorsFile | SourceFile,
    threads: int | None,
    notes: list[str],
    problems: list[str],
) -> tuple[int, dict[str, str]]:
    """Reads all tensors, piece by piece, and counts values that are not finite."""
    total = source.file_bytes
    done = 0
    non_finite = {}
    with c.progress("checking values") as step:
        for row in c.rows(source):
            if row.bytes == 0 or row.elements == 0:
                continue
            try:
                found = side(source, row.name, threads)
                if not found.integers:
                    text = _non_finite(found, done, total, row.bytes or 0, step)
                    if text is not None:
                        non_finite[row.name] = text
                    done += row.bytes or 0
            except NinferError as error:
                if isinstance(source, GgufFile):
                    notes.append(f'tensor "{c.show(row.name)}" of type {row.format}: values not checked')
                else:
                    problems.append(str(error))
    return done, non_finite


def _non_finite(
    found: Side, done: int, total: int, size: int, step: Callable[[int, int], None] | None
) -> str | None:
    count, first = 0, ""
    for begin, end in found.pieces():
        bad = ~np.isfinite(found.read(begin, end))
        more = int(bad.sum())
        if more and not count:
            row, column = np.argwhere(bad)[0]
            first = f"row {begin + int(row)}, column {int(column)}"
        count += more
        if step:
            step(done + size * end // found.n, total)
    if not count:
        return None
    return f"{count} value{'s' if count != 1 else ''} not finite, the first in {first}"
