"""Draws a record of benches/peers.py: one SVG for each operation, with the machine's limit.

``python benches/draw.py RECORD.json FOLDER``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

COLOURS = {"ours": "#2f6fb0", "prepared": "#7fb3e0", "ggml": "#c2803a", "torch": "#8a5aa8"}
LABELS = {
    "ours": "ninfer_rs",
    "prepared": "ninfer_rs, prepared",
    "ggml": "ggml",
    "torch": "PyTorch, bfloat16 weights (fp32: binary32)",
}
LEFT, WIDTH, BAR, GAP, TOP = 130, 820, 9, 7, 84


def picture(record: dict[str, Any], operation: str, threads: int, lines: list[dict[str, Any]]) -> str:
    """One bar chart."""
    who = [w for w in LABELS if any(w in line for line in lines)]
    shown = [*who, "limit"]
    top = max(line[w] for line in lines for w in shown if w in line) * 1.02
    scale = (WIDTH - LEFT - 60) / top
    step = len(who) * BAR + GAP
    height = TOP + step * len(lines) + 30
    unit = lines[0]["unit"]
    plural = "s" if threads > 1 else ""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15" fill="#222222">{escape(operation)}, {threads} thread{plural}, '
        f"{unit} (longer is faster)</text>",
        f'<text x="12" y="40" fill="#555555">{escape(record["cpu"])}, {escape(record["isa"])}; '
        f"{record['date']}, load {record['load']}; least time</text>",
    ]
    x = 12
    for w in who:
        out.append(f'<rect x="{x}" y="52" width="11" height="11" fill="{COLOURS[w]}"/>')
        out.append(f'<text x="{x + 16}" y="62" fill="#222222">{LABELS[w]}</text>')
        x += 30 + 7 * len(LABELS[w])
    for i, line in enumerate(lines):
        y = TOP + i * step
        middle = y + (len(who) * BAR) // 2 + 4
        out.append(
            f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end" fill="#222222">'
            f"{escape(line['format'])}</text>"
        )
        for j, w in enumerate(who):
            if w not in line:
                continue
            length = line[w] * scale
            out.append(
                f'<rect x="{LEFT}" y="{y + j * BAR}" width="{length:.1f}" height="{BAR - 1}" '
                f'fill="{COLOURS[w]}"/>'
            )
            out.append(
                f'<text x="{LEFT + length + 4:.1f}" y="{y + j * BAR + 8}" font-size="9" fill="#555555">'
                f"{line[w]:.3g}</text>"
            )
        if "limit" in line:
            at = LEFT + line["limit"] * scale
            out.append(
                f'<line x1="{at:.1f}" y1="{y - 2}" x2="{at:.1f}" y2="{y + len(who) * BAR + 1}" '
                'stroke="#a03030" stroke-width="2"/>'
            )
    names = dict.fromkeys(line["limit of"] for line in lines if "limit" in line)
    if names:
        out.append(
            f'<text x="{WIDTH - 12}" y="{height - 10}" text-anchor="end" fill="#a03030">'
            f"| limit of the machine in the same turns: {escape(', '.join(names))}</text>"
        )
    return "\n".join([*out, "</svg>", ""])


def pictures(record: dict[str, Any], folder: Path) -> Iterator[Path]:
    """Writes every picture of a record; yields their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = dict.fromkeys((line["operation"], line["threads"]) for line in record["results"])
    for operation, threads in keys:
        lines = [r for r in record["results"] if (r["operation"], r["threads"]) == (operation, threads)]
        name = operation.replace(",", "").replace(" ", "-").lower()
        path = folder / f"{name}-{threads}t.svg"
        path.write_text(picture(record, operation, threads, lines), encoding="utf-8")
        yield path


def main() -> int:
    """Draws the record named on the command line."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    for path in pictures(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
