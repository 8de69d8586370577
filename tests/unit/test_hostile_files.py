"""Files that nobody means well with: a clear error of the package, or a result; never another exception, a
wait or a control character on the terminal."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import ninfer_rs as nr
from ninfer_rs.cli import main
from support import raw_file
from support import write_safetensors as write

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLEAR = "\x1b[2J"
LARGE = (2**63 - 1, 2**63, 2**64 - 1)


def entry(begin: Any, end: Any, shape: Any = (1,), dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def text(header: Any) -> bytes:
    return header if isinstance(header, bytes) else json.dumps(header).encode()


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    header = text(header)
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


ONE = json.dumps(entry(0, 1)).encode()
REFUSED = {
    "an escaped duplicate": (b'{"a":%s,"\\u0061":%s}' % (ONE, ONE), b"a", None, 'duplicate member "a"'),
    "a duplicate member": (b'{"a":%s,"dtype":"U8"}}' % ONE[:-1], b"a", None, "duplicate member"),
    "a negative offset": ({"a": entry(-1, 1)}, b"a", None, '"a"'),
    "a negative dimension": ({"a": entry(0, 1, [-1])}, b"a", None, '"a"'),
    "a fraction": ({"a": entry(0, 1, [1.0])}, b"a", None, '"a"'),
    "a truth value": ({"a": entry(False, True, [True])}, b"a", None, '"a"'),
    "an overlap": ({"a": entry(0, 2, [2]), "b": entry(1, 3, [2])}, b"abc", None, '"b"'),
    "a gap": ({"a": entry(0, 1), "b": entry(2, 3)}, b"abc", None, '"b"'),
    "a tail": ({"a": entry(0, 1)}, b"ab", None, "1"),
    "a reversed range": ({"a": entry(1, 0)}, b"a", None, '"a"'),
    "an end past the file": ({"a": entry(0, 2, [2])}, b"a", None, '"a"'),
    "a product of 2^64": ({"a": entry(0, 0, [2**32, 2**32])}, b"", None, '"a"'),
    "deep lists": (b'{"a":' + b"[" * 100_000, b"", None, "deep|nest|recurs"),
    "deep objects": (b'{"a":' * 50_000, b"", None, "deep|nest|recurs"),
    "bytes that are no text": (b'{"a\xff":%s}' % ONE, b"a", None, "unicode|UTF-8"),
    "half a surrogate": (b'{"a\\ud800":%s}' % ONE, b"a", None, "surrogate|escape"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", None, "__metadata__"),
    "control characters": ({CLEAR: {CLEAR: 1}}, b"", None, "1b"),
    "a list": (b"[]", b"", None, "object|[{]"),
    "two documents": (b"{}{}", b"", None, "."),
}
for size in LARGE:
    REFUSED[f"a dimension of {size}"] = ({"a": entry(0, 1, [size])}, b"a", None, '"a"')
    REFUSED[f"an offset of {size}"] = ({"a": entry(0, size)}, b"a", None, '"a"')
    REFUSED[f"a header of {size}"] = ({"a": entry(0, 1)}, b"a", size, str(size))


def commands(path: Path, to: Path) -> list[list[str]]:
    return [
        ["inspect", str(path)],
        ["verify", str(path)],
        ["convert", str(path), str(to / "o.ninfer")],
        ["compare", str(path), str(path)],
        ["dequantize", str(path), "a", "-o", str(to / "o.npy")],
    ]


@pytest.mark.parametrize("what", REFUSED)
def test_headers_of_safetensors(what: str, tmp_path: Path) -> None:
    header, data, length, said = REFUSED[what]
    path = safetensors(tmp_path / "m.safetensors", header, data, length)
    with pytest.raises(nr.FileFormatError, match=said) as caught:
        nr.safetensors.open(path)
    message = str(caught.value)
    assert str(path) in message and len(message) < 1000 and not CONTROL.search(message)
    for command in commands(path, tmp_path):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2 and not CONTROL.search(result.output), (command, result.output)
    assert os.listdir(tmp_path) == ["m.safetensors"]


def text_key(key: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key


@pytest.mark.parametrize("count", [2**31, 2**32, 2**60, *LARGE])
def test_counts_of_gguf(count: int, tmp_path: Path) -> None:
    number = struct.pack("<Q", count)
    lists = [text_key(b"k") + struct.pack("<II", 9, kind) + number + bytes(8) for kind in (0, 8, 9, 12)]
    for content in [
        b"GGUF" + struct.pack("<I", 3) + number + bytes(8),
        b"GGUF" + struct.pack("<I", 3) + bytes(8) + number,
        raw_file([number + b"a"]),
        raw_file([text_key(b"k") + struct.pack("<I", 8) + number]),
        *(raw_file([key]) for key in lists),
        raw_file([], [(b"t", [count], 0, 0)], bytes(64)),
        raw_file([], [(b"t", [count, count], 2, 0)], bytes(64)),
        raw_file([], [(b"t", [32], 8, count)], bytes(64)),
    ]:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        with pytest.raises(nr.FileFormatError) as caught:
            nr.gguf.open(path)
        assert str(path) in str(caught.value) and caught.value.offset is not None
        for command in commands(path, tmp_path):
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 2 and "error: " in result.output, (command, result.output)
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_shapes_that_numpy_has_no_arrays_of(tmp_path: Path) -> None:
    shapes = {f"z{size}": [0, size, size] for size in LARGE} | {"d": [1] * 100}
    header = {name: entry(0, 0, shape, "F32") for name, shape in shapes.items()}
    header["d"] = entry(0, 4, [1] * 100, "F32")
    path = safetensors(tmp_path / "m.safetensors", header, bytes(4))
    with nr.safetensors.open(path) as s, nr.sources.open(path) as source:
        for name in shapes:
            for call in (s[name].array, s[name].values, s.stored[name].words, source[name].values):
                with pytest.raises(nr.ShapeError, match=f'tensor "{name}": numpy has no arrays') as caught:
                    call()
                assert len(str(caught.value)) < 300
    for name in shapes:
        for command in ("compare", str(path), str(path)), ("dequantize", str(path), name, "-o", "x.npy"):
            result = CliRunner().invoke(main, command)
            assert isinstance(result.exception, (SystemExit, type(None))), (command, result.exception)
    tensor = nr.Tensor.from_payload("fp32", (1,) * 16, bytes(4))
    assert tensor.dequantize().shape == tensor.words()["words"].shape == (1,) * 16
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_file([], [(b"t", [0, 2**40, 2**40], 0, 0)]))
    for use in ("array", "blocks"):
        with pytest.raises(nr.ShapeError, match='tensor "t": numpy has no arrays'):
            found = getattr(nr.gguf.open(path)["t"], use)
            found()


def test_no_control_characters_in_messages(tmp_path: Path) -> None:
    name = f"{CLEAR}\u009b\u202e"
    header = {name: entry(0, 1, [1, 1], name)}
    s = nr.safetensors.open(safetensors(tmp_path / "a.safetensors", header, b"a"))
    for call in (s[name].tensor, s[name].array, s[name].values, s[name].parts, s.stored[name].words):
        with pytest.raises(nr.UnsupportedError) as caught:
            call()
        assert r"\x1b[2J" in str(caught.value) and not CONTROL.search(str(caught.value))
    assert not CONTROL.search(s[name].reason or "") and not CONTROL.search(repr(s[name]))
    scaled = {
        f"{name}.weight": np.ones((1, 1), ml_dtypes.float8_e4m3fn),
        f"{name}.weight_scale": np.array([np.nan], np.float32),
    }
    s = nr.safetensors.open(write(tmp_path / "b.safetensors", scaled))
    with pytest.raises(nr.NinferError) as caught:
        s[f"{name}.weight"].tensor()
    assert "not finite" in str(caught.value) and not CONTROL.search(str(caught.value))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = (
        "import sys; from ninfer_rs.cli import main; from click.testing import CliRunner\n"
        "import ninfer_rs as nr\n"
        "pipe, to = sys.argv[1:]\n"
        "for words in (['inspect', pipe], ['verify', pipe], ['convert', pipe, to], ['compare', pipe, pipe],\n"
        "              ['dequantize', pipe, 'a', '-o', to]):\n"
        "    result = CliRunner().invoke(main, words)\n"
        "    assert result.exit_code == 2 and 'not a regular file' in result.output, (words, result.output)\n"
        "for call in (nr.gguf, nr.safetensors, nr.sources, nr.artifact, nr.imatrix):\n"
        "    try:\n"
        "        (call.load if call is nr.imatrix else call.open)(pipe)\n"
        "    except (OSError, nr.NinferError) as error:\n"
        "        assert 'regular' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(call)\n"
    )
    arguments = [sys.executable, "-c", script, str(pipe), str(tmp_path / "o")]
    done = subprocess.run(arguments, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_report_without_a_name_is_refused_before_the_work(tmp_path: Path) -> None:
    model = write(tmp_path / "m.safetensors", {"w": np.ones((2, 64), np.float32)})
    with pytest.raises(FileNotFoundError, match="empty name"):
        nr.convert(nr.plan(model), tmp_path / "o.ninfer", report="")
    result = CliRunner().invoke(main, ["dequantize", str(model), "w", "-o", ""])
    assert result.exit_code == 2 and "empty name" in result.output
    assert os.listdir(tmp_path) == ["m.safetensors"]
