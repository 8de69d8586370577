"""The package as a whole: what it exports, what it loads, what the command line needs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ninfer_rs as nr

PACKAGE = Path(nr.__file__).parent


def fresh(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_public_names() -> None:
    for name in nr.__all__:
        assert getattr(nr, name) is not None
        assert name in dir(nr)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nr.nothing  # noqa: B018


def test_every_public_function_is_documented() -> None:
    from ninfer_rs import artifact, gguf, simd

    for module in (nr, gguf, artifact, simd):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__, f"{module.__name__}.{name}"
                for attribute, member in vars(thing).items():
                    if not attribute.startswith("_") and (
                        inspect.isfunction(member) or isinstance(member, property)
                    ):
                        assert member.__doc__, f"{module.__name__}.{name}.{attribute}"


def test_importing_loads_only_what_is_needed() -> None:
    heavy = {"click", "rich", "ml_dtypes", "ninfer_rs.oracle", "ninfer_rs.artifact", "ninfer_rs.cli", "torch"}
    loaded = fresh("import sys, ninfer_rs; print(*sys.modules)").split()
    assert heavy.isdisjoint(loaded)
    loaded = fresh("import sys, ninfer_rs as nr; nr.oracle, nr.artifact; print(*sys.modules)").split()
    assert {"ninfer_rs.oracle", "ninfer_rs.artifact"} <= set(loaded)


def test_importing_starts_no_thread_and_keeps_the_float_mode() -> None:
    """Loading must not change how the process computes: subnormals stay subnormals."""
    script = (
        "import threading, numpy as np\nimport ninfer_rs as nr\n"
        "t = nr.Tensor.from_words('fp32', (1, 64), words=np.full((1, 64), 1, np.uint32))\n"
        "t.matmul(np.ones((1, 64), np.float32)); t.dequantize()\n"
        "tiny = np.array([1], np.uint32).view(np.float32)\n"
        "print(threading.active_count(), float((tiny + tiny)[0]) > 0)"
    )
    assert fresh(script) == "1 True"


def test_the_oracle_never_uses_the_native_module() -> None:
    for path in (PACKAGE / "oracle").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2 and "ninfer" not in (node.module or ""), path
                assert all(alias.name != "_native" for alias in node.names), path
            elif isinstance(node, ast.Import):
                assert all("ninfer" not in alias.name for alias in node.names), path


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert nr.__version__ == version("ninfer-rs")
    except PackageNotFoundError:
        assert nr.__version__.count(".") == 2


def test_errors_form_one_tree() -> None:
    for name in (
        "UnknownFormatError",
        "ShapeError",
        "InvalidTensorError",
        "UnsupportedError",
        "FileFormatError",
    ):
        assert issubclass(getattr(nr, name), nr.NinferError) and issubclass(getattr(nr, name), ValueError)
    assert issubclass(nr.TensorNotFoundError, KeyError) and issubclass(nr.TensorNotFoundError, nr.NinferError)
    assert str(nr.TensorNotFoundError("no such thing")) == "no such thing"
    assert str(nr.NinferError()) == ""
    error = nr.FileFormatError("text", "p", 3, "x")
    assert (error.path, error.offset, error.expected, str(error)) == ("p", 3, "x", "text")


def test_opening_the_package_from_many_threads() -> None:
    script = (
        "import threading\nout = []\n"
        "def go():\n import ninfer_rs as nr\n out.append(len(nr.FORMATS))\n"
        "ts = [threading.Thread(target=go) for _ in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\nprint(out == [30] * 8)"
    )
    assert fresh(script) == "True"


def test_the_stub_lists_every_native_name() -> None:
    from ninfer_rs import _native

    tree = ast.parse((PACKAGE / "_native.pyi").read_text(encoding="utf-8"))
    declared = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    native = {n for n in dir(_native) if not n.startswith("_")}
    assert declared == native
