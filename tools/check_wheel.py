"""Checks built wheels: size, tags and contents. usage: check_wheel.py WHEEL..."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

LIMIT = 5_000_000  # bytes
NEEDED = {
    "ninfer_rs/__init__.py",
    "ninfer_rs/_native.pyi",
    "ninfer_rs/oracle/__init__.py",
    "ninfer_rs/py.typed",
}
# One for every version from 3.10 on, or one for a free-threaded version.
NAME = re.compile(r"ninfer_rs-[0-9][^-]*-(cp310-abi3|cp3(\d+)t?-cp3\2t)-[a-z0-9_.]+\.whl")


def problems(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    found = []
    if not NAME.fullmatch(path.name):
        found.append("its name has other tags than cp310-abi3 or a free-threaded version's")
    if (size := path.stat().st_size) > LIMIT:
        found.append(f"it has {size} bytes; the limit is {LIMIT}")
    names = set(zipfile.ZipFile(path).namelist())
    found += [f"it lacks {name}" for name in sorted(NEEDED - names)]
    native = [n for n in names if re.fullmatch(r"ninfer_rs/_native[^/]*\.(so|pyd)", n)]
    if len(native) != 1:
        found.append(f"it has {len(native)} native modules")
    info = [n for n in names if n.startswith("ninfer_rs-") and "licenses/LICENSE" in n]
    if len(info) != 2:
        found.append(f"it has {len(info)} licences")
    other = [n for n in names if not n.startswith(("ninfer_rs/", "ninfer_rs-"))]
    return found + [f"it has {name}" for name in sorted(other)]


def main() -> int:
    """Exit code 1 if a wheel has a problem."""
    wheels = [Path(a) for a in sys.argv[1:]]
    bad = 0
    for wheel in wheels:
        found = problems(wheel)
        bad += bool(found)
        print(f"{wheel.name}: {'; '.join(found) or f'{wheel.stat().st_size} bytes, good'}")
    return 1 if bad or not wheels else 0


if __name__ == "__main__":
    sys.exit(main())
