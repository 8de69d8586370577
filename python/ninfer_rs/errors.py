"""Exceptions.

Every error raised on purpose is a :class:`NinferError`. Those that reject a value are also ``ValueError``; a
missing name is also a ``KeyError``. Errors of the operating system (a file that is not there, no permission,
a full disk) stay ``OSError``. Messages name the tensor where it has a name, the place and the broken rule.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FileFormatError",
    "InternalError",
    "InvalidTensorError",
    "NinferError",
    "ShapeError",
    "TensorNotFoundError",
    "UnknownFormatError",
    "UnsupportedError",
    "Violation",
]


@dataclass(frozen=True)
class Violation:
    """One broken validity rule of a tensor.

    ``plane`` is ``"code"``, ``"scale"``, ``"divisor"`` or ``"padding"``. The place is given by those of the
    fields that apply, counted from zero: ``row`` with ``column`` (elements) or ``group``, ``row`` alone,
    ``divisor`` (index), or ``byte`` (offset from the payload start, for bytes that belong to no word).
    ``word`` is the offending word as an unsigned integer.
    """

    plane: str
    row: int | None
    column: int | None
    group: int | None
    divisor: int | None
    byte: int | None
    word: int
    rule: str

    @property
    def place(self) -> str:
        """The place in words, e.g. ``"row 3, column 17"``."""
        named = (
            ("row", self.row),
            ("column", self.column),
            ("group", self.group),
            ("divisor", self.divisor),
            ("byte", self.byte),
        )
        return ", ".join(f"{name} {at}" for name, at in named if at is not None)

    def __str__(self) -> str:
        return f"{self.plane} plane, {self.place}: word {self.word:#x}: {self.rule}"


class NinferError(Exception):
    """Base of every error this package raises on purpose."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownFormatError(NinferError, ValueError):
    """No registered format or layout has this name; the message lists near names."""


class ShapeError(NinferError, ValueError):
    """A shape, length, row range or divisor count is not legal for the format."""


class UnsupportedError(NinferError, ValueError):
    """The request is understood, but this format, type or argument does not allow it."""


class TensorNotFoundError(NinferError, KeyError):
    """A file has no tensor or object of this name."""

    __str__ = NinferError.__str__


class InternalError(NinferError, RuntimeError):
    """A bug in this package: the native code panicked. Please report it."""


class InvalidTensorError(NinferError, ValueError):
    """A stored word breaks a validity rule of its format.

    ``violation`` says which (:class:`Violation`), or is None when the message alone does.
    """

    def __init__(
        self,
        message: str,
        violation: Violation
        | tuple[str, int | None, int | None, int | None, int | None, int | None, int, str]
        | None = None,
    ) -> None:
        super().__init__(message)
        self.violation = Violation(*violation) if isinstance(violation, tuple) else violation


class FileFormatError(NinferError, ValueError):
    """A file breaks a rule of its file format.

    ``path`` (str or None), ``offset`` (byte offset in that file, or None) and ``expected`` (what should have
    been there, or None) repeat what the message says.
    """

    def __init__(
        self,
        message: str,
        path: str | None = None,
        offset: int | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.expected = expected


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Puts ``tensor "name": `` before the message of errors raised inside; does nothing for None."""
    try:
        yield
    except NinferError as error:
        if name is not None:
            from ._files import printable  # which needs this module

            error.args = (f'tensor "{printable(name)}": {error.args[0]}', *error.args[1:])
        raise
