"""`.ninfer` artifacts, container version 3: reading by memory map, verifying, writing, converting from
GGUF."""

from __future__ import annotations

import builtins
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import numpy as np

from . import _native
from ._arrays import U8, payload_array, thread_count
from ._files import Mapped, not_found, path_text, printable
from .errors import UnsupportedError, Violation, naming
from .gguf import GgufFile
from .tensor import Tensor

__all__ = [
    "Artifact",
    "CompareReport",
    "ConvertPlan",
    "NonFinite",
    "Object",
    "PlannedTensor",
    "Skipped",
    "StructureReport",
    "TensorValues",
    "ValueReport",
    "Writer",
    "Written",
    "convert",
    "open",
    "plan",
]

Progress = Callable[[int, int], object]
"""Called with the bytes done and their total; what it raises stops the work."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Object:
    """One object as the directory lists it. ``kind`` is ``"tensor"`` or ``"resource"``; ``offset`` (in the
    logical payload) and ``bytes`` are bytes.

    Tensors have ``format``, ``layout``, ``shape`` and ``divisors``; format and layout may be names that this
    reader does not know. Resources have ``encoding``.
    """

    id: str
    kind: str
    offset: int
    bytes: int
    format: str | None
    layout: str | None
    shape: tuple[int, ...] | None
    divisors: int
    encoding: str | None


@dataclass(frozen=True)
class StructureReport:
    """What :meth:`Artifact.verify_structure` found: ``problems``, ``notes`` (gaps, which mean nothing), and
    the payload bytes that belong to no object."""

    problems: list[str]
    notes: list[str]
    unused_bytes: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class NonFinite:
    """Infinite or NaN words (or blocks with such a scale), legal in direct and gguf formats: how many, and
    where the first is. ``unit`` is ``"block"`` or ``"column"``."""

    count: int
    unit: str
    row: int
    index: int


@dataclass(frozen=True)
class TensorValues:
    """What was found in one tensor; ``more`` if there are more violations than were kept."""

    id: str
    format: str
    violations: list[Violation]
    more: bool
    non_finite: NonFinite | None


@dataclass(frozen=True)
class ValueReport:
    """What :meth:`Artifact.verify_values` found, tensor by tensor; ``problems`` are tensors that could not be
    checked, ``bytes`` the payload bytes that were."""

    tensors: list[TensorValues]
    problems: list[str]
    bytes: int

    @property
    def ok(self) -> bool:
        """Whether every tensor was checked and breaks no rule."""
        return not self.problems and not any(t.violations for t in self.tensors)


@dataclass(frozen=True)
class CompareReport:
    """What :meth:`Artifact.compare` found: tensors that are equal, bytes compared, tensors left out on
    purpose, and (name, text) of every difference."""

    equal: int
    bytes: int
    skipped: list[str]
    differences: list[tuple[str, str]]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(frozen=True)
class Written:
    """What was published: paths (the entry first), bytes of all files together, the 16 bytes of the artifact
    id."""

    files: tuple[str, ...]
    bytes: int
    artifact_id: builtins.bytes


class Artifact(Mapping[str, Tensor]):
    """An opened artifact: object id of a tensor -> :class:`Tensor` over the mapped file, by increasing
    offset.

    Objects of formats that this reader does not know are listed in :attr:`objects`, but asking for the tensor
    raises :class:`~ninfer_rs.FileFormatError`. Part files are opened when bytes in them are first needed.

    A context manager; leaving it refuses further use. Tensors taken from it stay valid: they keep the map
    alive.
    """

    __slots__ = ("_closed", "_directory", "_maps", "_native", "_objects", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._native = _native.ArtifactFile(path)
        rows = self._native.objects()
        self._objects = {
            r[0]: Object(*r[:6], tuple(r[6]) if r[6] is not None else None, *r[7:]) for r in rows
        }
        self._maps: dict[int, Mapped] = {}
        self._directory: Mapping[str, Any] | None = None
        self._closed = False

    @property
    def path(self) -> str:
        """Path of the entry file."""
        return self._path

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files, the entry first."""
        return tuple(path_text(row[0]) for row in self._native.files())

    @property
    def artifact_id(self) -> bytes:
        """16 bytes that tell one write from another."""
        return self._native.artifact_id()

    @property
    def payload_bytes(self) -> int:
        """Length of the logical payload."""
        return self._native.payload_bytes()

    @property
    def objects(self) -> Mapping[str, Object]:
        """Id -> :class:`Object`, resources included, by increasing offset. Read-only."""
        return MappingProxyType(self._objects)

    @property
    def directory(self) -> Mapping[str, Any]:
        """The JSON root as the file holds it: components, objects, bindings, uses, files, metadata,
        provenance."""
        if self._directory is None:
            self._directory = json.loads(self._native.json_text())
        return self._directory

    @property
    def components(self) -> Mapping[str, Any]:
        """Component id -> its record (``config``, ``target``, ``resources``, ``proposal``)."""
        components: Mapping[str, Any] = self.directory["components"]
        return components

    @property
    def bindings(self) -> Mapping[str, Any]:
        """Logical parameter -> ``{"object": id}`` or ``{"parts": [{"object", "range": [begin, end]},
        ...]}``."""
        bindings: Mapping[str, Any] = self.directory["bindings"]
        return bindings

    @property
    def uses(self) -> Sequence[Any]:
        """Records of ``parameter``, ``input`` and optional ``activation_policy`` and ``auxiliaries``."""
        uses: Sequence[Any] = self.directory["uses"]
        return uses

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The open ``metadata`` object, empty if there is none."""
        metadata: Mapping[str, Any] = self.directory.get("metadata", {})
        return metadata

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The open ``provenance`` object, empty if there is none."""
        provenance: Mapping[str, Any] = self.directory.get("provenance", {})
        return provenance

    def _object(self, id: str) -> Object:
        if self._closed:
            raise UnsupportedError(f"{self._path} is closed")
        try:
            return self._objects[id]
        except (KeyError, TypeError):
            raise not_found(self._path, "object", id, self._objects) from None

    def payload(self, id: str) -> U8:
        """The bytes of an object, read-only. Not copied, unless the object crosses files."""
        self._object(id)
        pieces = [self._map(file).bytes(offset, length) for file, offset, length in self._native.spans(id)]
        if len(pieces) == 1:
            return pieces[0]
        return payload_array(np.concatenate(pieces))

    def _map(self, index: int) -> Mapped:
        if index not in self._maps:
            size = self._native.file_bytes(index)
            self._maps[index] = Mapped(self.files[index], size)
        return self._maps[index]

    def resource(self, id: str) -> bytes:
        """The bytes of a resource."""
        if self._object(id).kind != "resource":
            raise UnsupportedError(f'{self._path}: object "{printable(id)}" is a tensor, not a resource')
        return self.payload(id).tobytes()

    def __getitem__(self, id: str) -> Tensor:
        found = self._object(id)
        payload = self.payload(id)
        if found.format is None or found.shape is None:
            raise UnsupportedError(f'{self._path}: object "{printable(id)}" is a resource, not a tensor')
        return Tensor.from_payload(
            found.format, found.shape, payload, found.divisors, found.layout, name=printable(id)
        )

    def __contains__(self, id: object) -> bool:
        return id in self._objects and self._objects[id].kind == "tensor"

    def __iter__(self) -> Iterator[str]:
        return (o.id for o in self._objects.values() if o.kind == "tensor")

    def __len__(self) -> int:
        return sum(o.kind == "tensor" for o in self._objects.values())

    def verify_structure(self) -> StructureReport:
        """Checks all that can be checked without reading the payload: parts, formats, layouts, sizes."""
        return StructureReport(*self._native.verify_structure())

    def verify_values(
        self, limit: int = 100, threads: int | None = None, progress: Progress | None = None
    ) -> ValueReport:
        """Checks every word of every tensor against the rules of its format, in bounded memory.

        At most ``limit`` violations per tensor are kept. ``progress`` is called from another thread; what it
        raises stops the check.
        """
        n_threads = thread_count(threads)
        rows, problems, checked = _interruptible(
            progress, lambda step: self._native.verify_values(limit, n_threads, step)
        )
        tensors = [
            TensorValues(
                id, fmt, [Violation(*v) for v in found], more, NonFinite(*non_finite) if non_finite else None
            )
            for id, fmt, found, more, non_finite in rows
        ]
        return ValueReport(tensors, problems, checked)

    def compare(self, source: GgufFile, progress: Progress | None = None) -> CompareReport:
        """Compares every tensor and the metadata with the GGUF model that the artifact was converted from, by
        bytes.

        ``progress`` is called from another thread; what it raises stops the comparison.
        """
        native = source._file.native
        return CompareReport(*_interruptible(progress, lambda step: self._native.compare(native, step)))

    def close(self) -> None:
        """Ends the use of the artifact; tensors taken from it stay valid."""
        self._closed = True
        for m in self._maps.values():
            m.close()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Artifact {self._path!r}: {len(self)} tensors>"


def open(path: str | os.PathLike[str]) -> Artifact:
    """Opens the entry file of an artifact and checks its directory.

    Raises ``OSError`` if it cannot be read and :class:`~ninfer_rs.FileFormatError` (path, byte offset or JSON
    member, what was expected) if it breaks a rule of the container; versions 1 and 2 are refused by number.
    """
    return Artifact(path_text(path))


def _interruptible(progress: Progress | None, work: Callable[[Progress], _T]) -> _T:
    """Runs ``work`` in a thread, so that Ctrl-C reaches the waiting main thread, and stops it then."""
    # Not Thread.join: an interrupted join may take a running thread for a finished one.
    stop, done = threading.Event(), threading.Event()
    result: list[_T] = []
    failure: list[BaseException] = []

    def step(so_far: int, total: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        if progress is not None:
            progress(so_far, total)

    def run() -> None:
        try:
            result.append(work(step))
        except BaseException as error:  # handed to the caller's thread below
            failure.append(error)
        finally:
            done.set()

    interrupt: BaseException | None = None
    threading.Thread(target=run, name="ninfer_rs", daemon=True).start()
    while not done.is_set():
        try:
            done.wait(0.1)
        except BaseException as error:  # wait for the thread to clean up, whatever comes meanwhile
            interrupt = interrupt or error
            stop.set()
    if interrupt is not None:
        raise interrupt
    if failure:
        raise failure[0]
    return result[0]


class Writer:
    """Writes an artifact. A context manager: leaving it without an exception writes and publishes the files.

    Objects keep the order in which they are added. Their buffers are only referred to until they are written,
    so memory maps are not read into memory. Nothing touches the disk before everything is planned and
    checked; the files appear complete or not at all, the entry last, and nothing is overwritten.

    ``components`` (required: ``text``, or ``ngram``), ``uses``, ``metadata`` and ``provenance`` have the
    members of the container specification; ``bindings`` None binds every tensor under its own id.
    ``artifact_id`` (16 bytes) is random by default; ``file_limit`` splits the artifact over files of at most
    so many bytes.

    Raises :class:`~ninfer_rs.UnsupportedError` (a rule of the container), ``FileExistsError``, ``OSError``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        components: Mapping[str, Mapping[str, Any]],
        bindings: Mapping[str, Any] | None = None,
        uses: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        artifact_id: bytes | None = None,
        file_limit: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._path = path_text(path)
        self._components = [_component(id, record) for id, record in components.items()]
        self._bindings = bindings
        self._uses = [_use(record) for record in uses]
        self._metadata = None if metadata is None else _json("metadata", metadata)
        self._provenance = None if provenance is None else _json("provenance", provenance)
        if artifact_id is not None and len(artifact_id) != 16:
            raise UnsupportedError(f"an artifact id has 16 bytes, got {len(artifact_id)}")
        self._artifact_id = None if artifact_id is None else bytes(artifact_id)
        self._file_limit = file_limit
        self._progress = progress
        self._objects: list[tuple[str, tuple[int, tuple[int, ...], int] | None, U8]] = []
        self._done = False

    def add_tensor(self, id: str, tensor: Tensor) -> None:
        """Adds a tensor object with the tensor's payload, byte for byte."""
        record = (tensor.format.index, tensor.shape, tensor.divisors)
        self._objects.append((id, record, tensor.payload))

    def add_resource(self, id: str, data: Any) -> None:
        """Adds a resource: the bytes of any buffer."""
        with naming(printable(id)):
            self._objects.append((id, None, payload_array(data)))

    def finish(self) -> Written:
        """Writes and publishes the files."""
        if self._done:
            raise UnsupportedError(f"{self._path} has been written")
        bindings = self._bindings
        if bindings is None:
            bindings = {id: {"object": id} for id, record, _ in self._objects if record is not None}
        plan = (
            self._components,
            [(parameter, _binding(record)) for parameter, record in bindings.items()],
            self._uses,
            self._metadata,
            self._provenance,
            self._artifact_id,
            self._file_limit,
        )
        paths, size, artifact_id = _native.artifact_write(self._path, self._objects, plan, self._progress)
        self._done = True
        return Written(tuple(path_text(p) for p in paths), size, artifact_id)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None and not self._done:
            self.finish()


def _json(what: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"{what} is not JSON: {error}") from None


def _members(what: str, record: Any, required: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise UnsupportedError(f"{what} is a mapping, got {type(record).__name__}")
    missing = required - set(record)
    unknown = set(record) - required - optional
    if missing or unknown:
        allowed = ", ".join(sorted(required | optional))
        raise UnsupportedError(
            f"{what} has the members {allowed}; missing {sorted(missing)}, unknown {sorted(unknown)}"
        )
    return record


_Binding = tuple[str | None, list[tuple[str, int, int]]]


def _component(
    id: str, record: Any
) -> tuple[str, str, str | None, list[tuple[str, str]], tuple[str, int | None] | None]:
    r = _members(f"component {id!r}", record, {"config"}, {"target", "resources", "proposal"})
    proposal = r.get("proposal")
    pair = None
    if proposal is not None:
        p = _members("a proposal", proposal, {"domain"}, {"rows"})
        pair = (p["domain"], p.get("rows"))
    return id, _json("config", r["config"]), r.get("target"), list(dict(r.get("resources", {})).items()), pair


def _binding(record: Any) -> _Binding:
    if isinstance(record, Mapping) and "parts" in record:
        r = _members("a binding", record, {"parts"}, set())
        parts = [_members("a part", p, {"object", "range"}, set()) for p in r["parts"]]
        return None, [(p["object"], p["range"][0], p["range"][1]) for p in parts]
    return _members("a binding", record, {"object"}, set())["object"], []


def _use(record: Any) -> tuple[str, str, str | None, list[tuple[str, _Binding]]]:
    r = _members("a use", record, {"parameter", "input"}, {"activation_policy", "auxiliaries"})
    auxiliaries = [(role, _binding(b)) for role, b in r.get("auxiliaries", {}).items()]
    return r["parameter"], r["input"], r.get("activation_policy"), auxiliaries


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of a conversion. Shapes in elements, sizes in bytes; ``action`` says how the bytes get
    there."""

    name: str
    source_type: str
    source_shape: tuple[int, ...]
    source_bytes: int
    format: str
    shape: tuple[int, ...]
    bytes: int
    action: str


@dataclass(frozen=True)
class Skipped:
    """A tensor that cannot be converted, and why."""

    name: str
    source_type: str
    reason: str


@dataclass(frozen=True)
class ConvertPlan:
    """What a conversion would do; ``resources`` are (id, bytes)."""

    tensors: list[PlannedTensor]
    skipped: list[Skipped]
    resources: list[tuple[str, int]]
    payload_bytes: int


def plan(source: GgufFile, *, skip_unsupported: bool = False) -> ConvertPlan:
    """Plans the conversion of a GGUF model, from its headers alone.

    Raises :class:`~ninfer_rs.UnsupportedError` that lists every tensor which cannot be converted, unless
    ``skip_unsupported``, which leaves those out.
    """
    tensors, skipped, resources, size = _native.convert_plan(
        source._file.native, (skip_unsupported, None, None)
    )
    planned = [
        PlannedTensor(name, kind, tuple(source_shape), source_bytes, fmt, tuple(shape), nbytes, action)
        for name, kind, source_shape, source_bytes, fmt, shape, nbytes, action in tensors
    ]
    return ConvertPlan(planned, [Skipped(*s) for s in skipped], resources, size)


def convert(
    source: GgufFile,
    path: str | os.PathLike[str],
    *,
    skip_unsupported: bool = False,
    file_limit: int | None = None,
    artifact_id: bytes | None = None,
    progress: Progress | None = None,
) -> Written:
    """Converts a GGUF model to an artifact in bounded memory: registered ggml types byte for byte as gguf_*,
    F32 as fp32, BF16 as bf16, I32 as int32, F16 to fp32 exactly.

    Everything is planned before the first byte is written (see :func:`plan` for refusals). The files appear
    complete or not at all, and nothing is overwritten. ``progress`` is called from another thread; what it
    raises stops the conversion, and nothing is left behind.
    """
    if artifact_id is not None and len(artifact_id) != 16:
        raise UnsupportedError(f"an artifact id has 16 bytes, got {len(artifact_id)}")
    options = (skip_unsupported, file_limit, artifact_id)
    native = source._file.native
    paths, size, found_id = _interruptible(
        progress, lambda step: _native.convert_run(native, path_text(path), options, step)
    )
    return Written(tuple(path_text(p) for p in paths), size, found_id)
