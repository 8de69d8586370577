"""Conversions that meet the machine's limits: memory that must suffice, disks that fill up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ninfer_rs as nr

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux counts them")

RECIPE = """
[[rule]]
match = "a*"
format = "q8_g32_fp16"
[[rule]]
match = "b*"
format = "q4_g64_fp16"
method = "grouped_search"
"""

# Anonymous memory beyond that of the interpreter, threads' stacks included. A conversion that keeps the
# values or the words of one tensor as a whole, or the words of all, needs more.
MEMORY = """
import json, os, resource, sys
import ninfer_rs as nr
nr.conversion
source, out, recipe, threads = sys.argv[1:]
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
def written():
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))
limit = status("VmData") + 60 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np_fails = bytearray(64 * 2**20)
except MemoryError:
    pass
else:
    sys.exit("the limit does not hold here")
before = written()
nr.convert(source, out, recipe, memory=16 * 2**20, threads=int(threads))
print(json.dumps(written() - before))
"""


def sparse_model(path: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """A safetensors model of F32 zeros that take no disk."""
    header: dict[str, Any] = {}
    at = 0
    for name, (n, k) in shapes.items():
        header[name] = {"dtype": "F32", "shape": [n, k], "data_offsets": [at, at + 4 * n * k]}
        at += 4 * n * k
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


@pytest.mark.parametrize("tensors", [1, 128])
def test_memory_stays_bounded_and_bytes_are_written_once(tensors: int, tmp_path: Path) -> None:
    """FR-77: 512 MiB with 16 MiB of buffers, as one tensor or as many."""
    model, out, recipe = tmp_path / "m.safetensors", tmp_path / "m.ninfer", tmp_path / "r.toml"
    recipe.write_text(RECIPE)
    rows = 65536 // tensors
    sparse_model(model, {f"{'ab'[i % 2]}{i}": (rows, 2048) for i in range(tensors)})
    recipe.write_text(RECIPE if tensors > 1 else RECIPE.partition('[[rule]]\nmatch = "b*"')[0])
    command = [sys.executable, "-c", MEMORY, str(model), str(out), str(recipe), "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "the limit does not hold here" in done.stderr:
        pytest.skip("RLIMIT_DATA does not count mappings on this kernel")
    assert done.returncode == 0, done.stderr
    size = out.stat().st_size
    assert size > 70 << 20
    # The payload, and directories, libraries' messages and the like.
    assert size * 0.99 < json.loads(done.stdout) < size + (1 << 20)


def small_model(path: Path) -> None:
    random = np.random.default_rng(5)
    tensors = {f"{'ab'[i % 2]}{i}": random.normal(0, 0.1, (512, 256)).astype(np.float32) for i in range(8)}
    nr.gguf.write(path, {"general.architecture": "test"}, tensors)


FULL = """
import json, resource, signal, sys
import ninfer_rs as nr
source, out, recipe, resume, allowed = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def step(done, total):
    # Files begin at their whole length; from now on no more of them can be written.
    if allowed != "-":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(allowed), resource.RLIM_INFINITY))
try:
    done = nr.convert(
        source, out, recipe, resume=resume == "yes", progress=step, artifact_id=bytes(16), threads=1
    )
    print(json.dumps([done.report["run"]["resumed_tensors"], ""]))
except OSError as error:
    print(json.dumps([error.errno, str(error)]))
"""


def convert_limited(*arguments: object, under: tuple[str, ...] = ()) -> tuple[int, str]:
    command = [*under, sys.executable, "-c", FULL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    number, text = json.loads(done.stdout)
    return number, text


@pytest.mark.parametrize("resume", ["no", "yes"])
def test_a_write_that_fails_half_way(resume: str, tmp_path: Path) -> None:
    """A limit on file sizes stands for the disk that is full: the same errors from the same calls."""
    model, recipe, folder = tmp_path / "m.gguf", tmp_path / "r.toml", tmp_path / "out"
    small_model(model)
    recipe.write_text(RECIPE)
    folder.mkdir()
    nr.convert(model, tmp_path / "whole.ninfer", recipe, artifact_id=bytes(16))
    whole = (tmp_path / "whole.ninfer").read_bytes()
    out = folder / "m.ninfer"
    number, text = convert_limited(model, out, recipe, resume, 2 * len(whole) // 3)
    assert number == 27, text  # EFBIG
    for part in ("m.ninfer", "cannot write", "File too large", 'tensor "', "rows"):
        assert part in text, text
    left = sorted(p.name for p in folder.iterdir())
    if resume == "no":
        assert left == []
        return
    assert left == [".m.ninfer.journal", ".m.ninfer.resume"]
    assert (folder / ".m.ninfer.resume").stat().st_size == len(whole)
    number, text = convert_limited(model, out, recipe, resume, "-")
    assert text == "" and 3 <= number <= 6, (number, text)
    assert out.read_bytes() == whole and [p.name for p in folder.iterdir()] == ["m.ninfer"]


def test_a_full_disk_and_space_again(tmp_path: Path) -> None:
    """A file system of its own, seen by these processes alone, with little space."""
    model, recipe = tmp_path / "m.gguf", tmp_path / "r.toml"
    small_model(model)
    recipe.write_text(RECIPE)
    nr.convert(model, tmp_path / "whole.ninfer", recipe, artifact_id=bytes(16))
    whole = (tmp_path / "whole.ninfer").stat().st_size
    disk = tmp_path / "disk"
    disk.mkdir()
    size = -(-whole // 4096) * 4096 + (256 << 10)
    script = f"""
set -e
mount -t tmpfs -o size={size} none "$1" 2>/dev/null || exit 77
shift
head -c {whole // 2} /dev/zero > "$0/filler"
for again in 1 2; do
  "$@" || exit 1
  ls -A "$0" | tr '\\n' ' '
  echo
done
rm "$0/filler"
"$@"
ls -A "$0" | tr '\\n' ' '
echo
cp "$0/m.ninfer" "$0/../copy"
"""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    inner = [sys.executable, "-c", FULL, str(model), str(disk / "m.ninfer"), str(recipe), "yes", "-"]
    under = ["unshare", "-rm", "sh", "-c", script, str(disk), str(disk), *inner]
    done = subprocess.run(under, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6, lines
    for result, names in ((lines[0], lines[1]), (lines[2], lines[3])):
        number, text = json.loads(result)
        assert number == 28, text  # ENOSPC
        assert "m.ninfer" in text and "No space left" in text, text
        assert "m.ninfer" not in names.split() and set(names.split()) <= {
            "filler",
            ".m.ninfer.journal",
            ".m.ninfer.resume",
        }
    resumed, text = json.loads(lines[4])
    assert text == "" and 1 <= resumed <= 6, (resumed, text)
    assert lines[5].split() == ["m.ninfer"]
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "whole.ninfer").read_bytes()
    assert os.listdir(disk) == []
