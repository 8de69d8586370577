"""Which of the project's goals of speed on x86-64 a record of benches/peers.py meets: tables in Markdown.

    python benches/goals.py [RECORD.json ...] [--missed] [--summary]

Without a record: the newest ``benches/records/*-peers.json``. ``--missed`` leaves out what is met,
``--summary`` prints one line for each goal only. Figures are of the least times; the figure of the median
times stands beside them. A share is of the limit measured in the same turns by the same number of threads
(in records that have it once for the whole run: of that). What bounds the goals that are missed is in the
newest ``benches/records/*-bounds.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent / "records"
# Look-ups in grids: iq1 to iq3.
GRIDS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
GROUPED = (
    "q2_g64_fp16",
    "t2_g128_fp16",
    "q4_g64_fp16",
    "q5_g64_fp16",
    "q6_g64_fp16",
    "q8_g32_fp16",
    "nvfp4",
)
# Fewer than four bits a weight, grids apart.
SMALL = ("q2_0", "q2_K", "q3_K", "q2_g64_fp16", "t2_g128_fp16")
# Words as they are, of more than eight bits: A16 beside PyTorch has no goal for them.
DIRECT = ("bf16", "fp32")
# ik_llama.cpp's weights repacked (-rtr), GB/s from a third-level cache that reads 125 (Zen 5, one thread).
IK_REPACKED = {
    "q8_0": 100,
    "q4_0": 58,
    "iq4_nl": 60,
    "q4_K": 49,
    "q5_K": 43,
    "q6_K": 48,
    "iq4_xs": 48,
}
IK_READ = 125
# Tokens whose integer products are two instructions of 256 bits and an addition.
MADDUBS = ("avx2",)

Line = dict[str, Any]
Limits = dict[str, float]
# The goal of a format, or None where it has none.
Goal = Callable[[str], float | None]
# The figure of a line that is set beside the goal; the second argument is "" or " median".
Figure = Callable[[Line, Limits, str], float]


@dataclass(frozen=True)
class Aim:
    """A goal: of which lines, what is counted, and how much is asked of a format."""

    operation: str
    what: str
    goal: Goal
    figure: Figure
    # Where it is given; None: with any number of threads that the record has.
    threads: int | None = None


@dataclass(frozen=True)
class Result:
    """A line of a record beside its goal."""

    operation: str
    threads: int
    what: str
    kind: str
    figure: float
    median: float
    goal: float

    @property
    def met(self) -> bool:
        """Whether the least times reach the goal."""
        return self.figure >= self.goal

    @property
    def near(self) -> bool:
        """Missed by the least times, reached by the median ones, or the other way round."""
        return self.met != (self.median >= self.goal)


def ratio(line: Line, _: Limits, which: str) -> float:
    """Times as fast as the peer."""
    return float(line[f"ratio{which}"])


def limit(line: Line, limits: Limits, name: str, which: str) -> float:
    """The limit of the machine: measured in the line's own turns, or, in older records, once in the run."""
    return float(line[f"limit{which}"]) if "limit" in line else limits[name]


def share(name: str, who: str = "ours") -> Figure:
    """Share of a limit of the machine."""
    return lambda line, limits, which: float(line[who + which]) / limit(line, limits, name, which)


def of_ik(line: Line, limits: Limits, which: str) -> float:
    """Repacked, times ik_llama.cpp's figure scaled by the reads of this run's third-level cache."""
    scaled = IK_REPACKED[line["format"]] * limit(line, limits, "read 8 MiB", which) / IK_READ
    return float(line[f"prepared{which}"]) / scaled


def aims(isa: str) -> list[Aim]:
    """The goals, for a record of this instruction set."""
    dots = "int8 maddubs 256-bit" if isa in MADDUBS else "int8 dot 512-bit"
    peak = "byte products' peak (256 bits)" if isa in MADDUBS else "integer dot products' peak (512 bits)"

    def plain(kind: str) -> float | None:
        if kind in GROUPED:
            return None
        return 15.0 if kind == "q2_0" else 2.0 if kind in GRIDS else 1.3

    def stored(kind: str) -> float | None:
        return None if kind in GRIDS or kind in SMALL else 0.70

    def grids(kind: str) -> float | None:
        return 2.0 if kind in GRIDS else None

    def nearest(kind: str) -> float | None:
        return 1.0 if kind in GROUPED else None

    beside = "times the weights a second of the nearest ggml type"
    few, many = "matrix-matrix, 16 columns", "matrix-matrix, 512 columns"
    return [
        Aim(
            "decode to 64 MiB",
            "of plain stores",
            lambda k: 0.5 if k in GRIDS else 0.9,
            share("store 64 MiB"),
        ),
        Aim("decode to cache", "times ggml", lambda k: 2.0, ratio),
        Aim("matrix-vector", "times ggml, as stored", plain, ratio, 1),
        Aim(
            "matrix-vector",
            "times ik_llama.cpp's repacked figure, scaled by reads of L3",
            lambda k: 1.0 if k in IK_REPACKED else None,
            of_ik,
            1,
        ),
        Aim("matrix-vector, 1 GiB", "of plain reads, as stored", stored, share("read 512 MiB"), 2),
        Aim(
            "matrix-vector, 1 GiB",
            "of plain reads, repacked",
            lambda k: None if k in GRIDS else 0.85,
            share("read 512 MiB", "prepared"),
            2,
        ),
        Aim("matrix-vector, 1 GiB", "times ggml", grids, ratio, 2),
        Aim(few, f"of the {peak}", lambda k: None if isa in MADDUBS else 0.40, share(dots)),
        Aim(many, f"of the {peak}", lambda k: 0.70, share(dots)),
        Aim(
            "A16 matrix-vector",
            "times PyTorch's bfloat16 weights a second",
            lambda k: None if k in DIRECT else 1.0,
            ratio,
        ),
        Aim(
            "A16 matrix-matrix, 512 columns",
            "of the binary32 FMA peak (512 bits)",
            lambda k: 0.70,
            share("fma 512-bit"),
        ),
        *(Aim(o, beside, nearest, ratio) for o in ("matrix-vector", "matrix-vector, 1 GiB", few, many)),
    ]


def results(record: dict[str, Any]) -> Iterator[Result]:
    """Every line of a record that has a goal, by goals; not those whose limit it lacks."""
    for aim in aims(record["isa"]):
        for line in sorted(record["results"], key=lambda r: int(r["threads"])):
            threads, kind = int(line["threads"]), str(line["format"])
            if line["operation"] != aim.operation or aim.threads not in (None, threads):
                continue
            goal = aim.goal(kind)
            if goal is None:
                continue
            limits = record["limits"].get(str(threads), {})
            try:
                figure, median = (aim.figure(line, limits, which) for which in ("", " median"))
            except KeyError:
                continue
            yield Result(aim.operation, threads, aim.what, kind, figure, median, goal)


def shown(r: Result) -> str:
    """The figure, to a third place where the second one would hide that the goal is missed."""
    text = f"{r.figure:.2f}"
    return text if r.met or float(text) < r.goal else f"{r.figure:.3f}"


def threads_of(n: int) -> str:
    """In words."""
    return "1 thread" if n == 1 else f"{n} threads"


def summary(found: list[Result]) -> list[str]:
    """A line for each goal: how many formats meet it, and the others with their figures."""
    groups: dict[tuple[str, int, str], list[Result]] = {}
    for r in found:
        groups.setdefault((r.operation, r.threads, r.what), []).append(r)
    out = ["| operation | figure | met | missed |", "|---|---|---|---|"]
    for (operation, threads, what), lines in groups.items():
        missed = [f"`{r.kind}` {shown(r)} ({r.goal:g})" for r in lines if not r.met]
        met = f"{len(lines) - len(missed)} of {len(lines)}"
        out.append(f"| {operation}, {threads_of(threads)} | {what} | {met} | {', '.join(missed) or '–'} |")
    return out


def table(found: list[Result]) -> list[str]:
    """A line for each goal and format."""
    out = ["| operation | figure | format | least | median | goal | |", "|---|---|---|---|---|---|---|"]
    for r in found:
        verdict = ("met" if r.met else "missed") + (", median not alike" if r.near else "")
        place = f"{r.operation}, {threads_of(r.threads)} | {r.what}"
        out.append(f"| {place} | `{r.kind}` | {shown(r)} | {r.median:.2f} | {r.goal:g} | {verdict} |")
    return out


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables of each record; 1 if one cannot be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--missed", action="store_true", help="only lines that miss their goal")
    parser.add_argument("--summary", action="store_true", help="only the line of each goal")
    args = parser.parse_args(arguments)
    for path in args.records or sorted(RECORDS.glob("*-peers.json"))[-1:]:
        try:
            record = json.loads(path.read_text())
            found = list(results(record))
        except (OSError, ValueError, TypeError, KeyError) as error:
            print(
                f"{path}: not a record of benches/peers.py: {type(error).__name__}: {error}", file=sys.stderr
            )
            return 1
        print(f"# {path.name}: {record.get('cpu')}, {record['isa']}, {record.get('date')}\n")
        print(f"{sum(r.met for r in found)} of {len(found)} lines meet their goals.\n")
        print("\n".join(summary(found)), end="\n\n")
        if not args.summary:
            print("\n".join(table([r for r in found if not (args.missed and r.met)])), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
