"""``ninfer-rs verify``."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from .. import gguf
from ..artifact import Artifact
from ..gguf import GgufFile
from ..tensor import Tensor
from . import _common as c

#: Elements decoded at a time when values are checked.
STEP = 1 << 22


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
    """Check FILE, a .ninfer artifact or a GGUF model: structure, sizes, every validity rule of every word.

    Infinite and NaN values are legal in bf16, fp32 and gguf formats; they are counted per tensor. For a GGUF
    model, whatever llama.cpp's own reader would refuse is listed as a warning.
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
                raise click.UsageError("--against is for artifacts; use compare for two GGUF files")
        if values:
            checked = (
                _artifact_values(source, limit, threads, problems)
                if isinstance(source, Artifact)
                else _gguf_values(source, threads, notes)
            )
            report["checked_bytes"], non_finite = checked
            report["non_finite"] = non_finite
            target = problems if require_finite else notes
            for name, count in non_finite.items():
                target.append(f'tensor "{c.show(name)}": {count}')
        if against is not None and isinstance(source, Artifact):
            with gguf.open(against) as model, c.progress("comparing") as step:
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


def _gguf_values(source: GgufFile, threads: int | None, notes: list[str]) -> tuple[int, dict[str, str]]:
    """Decodes all tensors, piece by piece, and counts values that are not finite."""
    total = source.file_bytes
    done = 0
    non_finite = {}
    with c.progress("checking values") as step:
        for t in source.values():
            if t.format is None or t.nbytes == 0 or t.format.name == "int32":
                if t.format is None and t.type_name != "F16":
                    notes.append(f'tensor "{c.show(t.name)}" of type {t.type_name}: values not checked')
                continue
            tensor = t.tensor()
            if tensor.ndim != 2:
                tensor = Tensor.from_payload(tensor.format, (1, tensor.size), tensor.payload)
            n, k = tensor.shape
            count, first = 0, ""
            for begin in range(0, n, rows_at_a_time(k)):
                end = min(n, begin + rows_at_a_time(k))
                bad = ~np.isfinite(tensor.rows(begin, end).dequantize(threads=threads))
                found = int(bad.sum())
                if found and not count:
                    row, column = np.argwhere(bad)[0]
                    first = f"row {begin + int(row)}, column {int(column)}"
                count += found
                if step:
                    step(done + (t.nbytes or 0) * end // n, total)
            done += t.nbytes or 0
            if count:
                plural = "s" if count != 1 else ""
                non_finite[t.name] = f"{count} value{plural} not finite, the first in {first}"
    return done, non_finite


def rows_at_a_time(k: int) -> int:
    """Rows of ``k`` elements that make a piece."""
    return max(1, STEP // k)
