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
# Machine numbers of ELF headers by the ends of platform tags.
MACHINES = {"x86_64": 62, "aarch64": 183}
# One for every version from 3.10 on, or one for a free-threaded version.
NAME = re.compile(r"ninfer_rs-[0-9][^-]*-(cp310-abi3|cp3(\d+)t?-cp3\2t)-[a-z0-9_.]+\.whl")


def elf_problems(tag: str, native: bytes) -> list[str]:
    """What does not fit the platform tag in a module of Linux: its machine and what it asks of glibc."""
    found = []
    if "linux" not in tag:
        return found
    machine = int.from_bytes(native[18:20], "little")
    if machine != next((m for end, m in MACHINES.items() if tag.endswith(end)), None):
        found.append(f"its module is for the ELF machine {machine}")
    asked = max((int(v) for v in re.findall(rb"GLIBC_2\.(\d+)", native)), default=None)
    if "musllinux" in tag and asked is not None:
        found.append("its module asks for glibc")
    if "manylinux2014" in tag and (asked is None or asked > 17):
        found.append(f"its module asks for {'no glibc' if asked is None else f'glibc 2.{asked}'}")
    return found


def problems(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    found = []
    if not NAME.fullmatch(path.name):
        found.append("its name has other tags than cp310-abi3 or a free-threaded version's")
    if (size := path.stat().st_size) > LIMIT:
        found.append(f"it has {size} bytes; the limit is {LIMIT}")
    archive = zipfile.ZipFile(path)
    names = set(archive.namelist())
    found += [f"it lacks {name}" for name in sorted(NEEDED - names)]
    native = [n for n in names if re.fullmatch(r"ninfer_rs/_native[^/]*\.(so|pyd)", n)]
    if len(native) != 1:
        found.append(f"it has {len(native)} native modules")
    found += [p for n in native if n.endswith(".so") for p in elf_problems(path.stem, archive.read(n))]
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
