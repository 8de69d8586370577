"""Which instruction set the native code uses. Results never depend on it."""

from __future__ import annotations

from types import TracebackType
from typing import TypedDict

from . import _native

__all__ = ["Info", "info", "use"]


class Info(TypedDict):
    """What :func:`info` returns."""

    isa: str
    available: list[str]
    threads: int


def info() -> Info:
    """The instruction set in use, those this machine can run, and the number of threads ``threads=None``
    means.

    The environment variable ``NINFER_SIMD`` chooses one at start; :func:`use` chooses one later. Raises
    :class:`~ninfer_rs.UnsupportedError` if the variable names one that is unknown or not available here.
    """
    isa, available, threads = _native.simd_info()
    return {"isa": isa, "available": available, "threads": threads}


class use:
    """Forces an instruction set for the whole process, from the call on.

    ``name`` is one of ``info()["available"]``; None returns to the automatic choice. As a context manager it
    restores what was in force before. Raises :class:`~ninfer_rs.UnsupportedError` for an unknown or
    unavailable name, and changes nothing then.
    """

    def __init__(self, name: str | None) -> None:
        self._before = _native.simd_forced()
        _native.simd_use(name)

    def __enter__(self) -> use:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _native.simd_use(self._before)
