"""Memory maps and names, shared by the readers of files."""

from __future__ import annotations

import contextlib
import difflib
import mmap
import os
import secrets
from typing import TYPE_CHECKING

import numpy as np

from ._arrays import U8
from .errors import FileFormatError, TensorNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Mapped:
    """A read-only memory map of a file as a uint8 array, made when first used."""

    __slots__ = ("_bytes", "_map", "path", "size")

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._map: mmap.mmap | None = None
        self._bytes: U8 | None = None

    def bytes(self, begin: int, length: int) -> U8:
        """The bytes ``begin..begin + length`` of the file, read-only and not copied."""
        if self._bytes is None:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != self.size:
                    raise FileFormatError(
                        f"{self.path}: the file has {found} bytes, it had {self.size} when it was opened",
                        self.path,
                        None,
                        f"{self.size} bytes",
                    )
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(self._map, np.uint8)
        return self._bytes[begin : begin + length]

    def close(self) -> None:
        """Gives the map back, or leaves that to the last array that looks into it."""
        self._bytes = None
        if self._map is not None:
            # If arrays still look into the map, it goes with the last of them.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


def decode_name(name: bytes) -> str:
    """A name as text; bytes that are not UTF-8 become surrogates, so that it encodes back to the same
    bytes."""
    return name.decode("utf-8", "surrogateescape")


def encode_name(name: str) -> bytes:
    """The inverse of :func:`decode_name`."""
    return name.encode("utf-8", "surrogateescape")


def printable(name: str) -> str:
    """A name for messages and terminals: whatever is not printable is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in name)


def not_found(path: str, what: str, name: object, known: Iterable[str]) -> TensorNotFoundError:
    """The error of a name that a file does not have, with near names."""
    shown = printable(name) if isinstance(name, str) else repr(name)
    near = difflib.get_close_matches(name, known, n=3) if isinstance(name, str) else []
    hint = f"; did you mean {', '.join(printable(n) for n in near)}?" if near else ""
    return TensorNotFoundError(f'{path}: no {what} "{shown}"{hint}')


def path_text(path: str | bytes | os.PathLike[str]) -> str:
    """A path as text."""
    return os.fsdecode(os.fspath(path))


@contextlib.contextmanager
def new_file(path: str, force: bool = False, hint: str = "") -> Iterator[str]:
    """A temporary name beside ``path`` that becomes ``path`` if all goes well, and disappears otherwise."""
    if not path:
        raise FileNotFoundError("a file to write has an empty name")
    if not force and os.path.lexists(path):
        raise FileExistsError(f"{path}: the file exists{hint}")
    # A rename would put a file in the place of /dev/null, for every program of the machine.
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(f"{path}: not a regular file, and not replaced by one")
    folder, name = os.path.split(path)
    if folder and not os.path.isdir(folder):
        raise FileNotFoundError(f"{folder}: no such folder for {name}")
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        if force:
            os.replace(temporary, path)
        else:
            _publish(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _publish(temporary: str, path: str) -> None:
    """Gives a finished file its name, unless the name was taken meanwhile (FileExistsError)."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links on this file system: take the name with an empty file, then rename over that file.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            os.replace(temporary, path)
        except BaseException:
            os.unlink(path)
            raise
    else:
        os.unlink(temporary)
