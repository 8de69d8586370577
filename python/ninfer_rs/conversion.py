"""Conversions by recipe: any source of tensors to a `.ninfer` artifact, each tensor to the format its rule
names."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import operator
import os
import pickle
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import payload_array, thread_count
from ._files import new_file, path_text, printable
from .artifact import Progress, Written, _interruptible
from .errors import UnsupportedError
from .gguf import GgufFile
from .registry import BY_INDEX, Format
from .tensor import Tensor

__all__ = ["Context", "Converted", "Plan", "Recipe", "Rule", "convert", "plan"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Context:
    """What a callable method is told beside the values: the planned tensor's name, format and shape [N, K],
    the number of divisors (``nvfp4``), and for each source piece its importance, float32 [K] or [experts, K],
    or None."""

    name: str
    format: Format
    shape: tuple[int, ...]
    divisors: int
    importance: list[F32 | None]


Method = Callable[[F32, Context], Tensor]
"""``f(values, context)``: the tensor of the context's format and shape for ``values`` float32 [N, K]."""


@dataclass(frozen=True)
class Rule:
    """One rule of a recipe. The members are those of the TOML form (docs/conversion.md): ``match`` or
    ``stack``, and ``format`` or ``drop``; ``method`` may also be a Python callable (:data:`Method`)."""

    match: str | None = None
    format: str | Format | None = None
    method: str | Method | None = None
    stack: str | Sequence[str] | None = None
    name: str | None = None
    drop: bool = False
    rows: tuple[int, int] | None = None
    layout: str | None = None
    negative_scales: bool = False
    importance: str = "auto"
    fallback: str | Sequence[str] | None = None
    bind: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Recipe:
    """Ordered rules, the first that matches a tensor (or rows of it) decides; ``default`` for the others,
    whose ``format`` may be ``"keep"`` (the default) or ``"refuse"``; ``importance_names`` as (pattern, name
    in the importance matrix)."""

    rules: Sequence[Rule] = ()
    default: Rule = field(default_factory=lambda: Rule(format="keep"))
    importance_names: Sequence[tuple[str, str]] = ()

    def _json(self) -> tuple[str, dict[str, Method]]:
        methods: dict[str, Method] = {}
        for rule in (*self.rules, self.default):
            if not isinstance(rule, Rule):
                raise UnsupportedError(
                    f"a recipe has rules of type Rule, got {type(rule).__name__}: {rule!r:.80}"
                )
        document = {
            "rule": [_members(rule, methods) for rule in self.rules],
            "default": _members(self.default, methods),
            "importance_name": [{"match": m, "name": n} for m, n in self.importance_names],
        }
        return json.dumps(document), methods


RecipeLike = Union[None, str, "os.PathLike[str]", Recipe, Sequence[Rule]]


def _members(rule: Rule, methods: dict[str, Method]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in vars(rule).items():
        if value is None or value is False or (key, value) == ("importance", "auto"):
            continue
        if key == "format":
            value = str(value)
        elif key == "method" and callable(value):
            name = f"{getattr(value, '__name__', type(value).__name__)}@{_identity(value)}"
            while methods.get(name, value) is not value:
                name += "_"
            methods[name] = value
            value = f"callable:{name}"
        elif key == "rows":
            try:
                value = [operator.index(n) for n in value]
            except TypeError:
                raise UnsupportedError(f"rows are two integers, [begin, end), got {value!r}") from None
        elif isinstance(value, tuple):
            value = list(value)
        out[key] = value
    return out


def _identity(method: Any) -> str:
    """Twelve hexadecimal digits that tell methods apart: of a function's source text (else its code), its
    defaults and the values it closes over; of a pickle for other objects. What it calls is not looked at."""
    digest = hashlib.sha256()
    seen: set[int] = set()

    def add(value: Any) -> None:
        while isinstance(value, functools.partial):
            add((value.args, sorted(value.keywords.items())))
            value = value.func
        value = inspect.unwrap(value) if callable(value) else value
        code = getattr(value, "__code__", None)
        if code is None:
            try:
                digest.update(pickle.dumps(value, protocol=4))
            except Exception:  # whatever a class's own pickling raises
                digest.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())
            return
        if id(value) in seen:  # a function that closes over itself
            return
        seen.add(id(value))
        try:
            digest.update(inspect.getsource(value).encode())
        except (OSError, TypeError):
            digest.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
            for constant in code.co_consts:
                digest.update(constant.co_code if inspect.iscode(constant) else repr(constant).encode())
        add((value.__defaults__, value.__kwdefaults__))
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # not filled yet
                add(cell.cell_contents)

    add(method)
    return digest.hexdigest()[:12]


_Key = tuple[str, tuple[str, bool, str | None], str | None, tuple[bool, int | None, bytes | None, bool]]
"""All a plan follows from: what another process needs to make the same one."""


class Plan:
    """What every tensor becomes, and why, worked out from headers alone. Printable."""

    def __init__(self, key: _Key, methods: Mapping[str, Method]) -> None:
        self._key = key
        self._methods = dict(methods)
        self._native = _native.ConvertPlan(*key)
        self._rows = self._native.tensors()
        self._json: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values: per tensor source, format, shape, bytes, method, rule, why."""
        if self._json is None:
            self._json = json.loads(self._native.json())
        return self._json

    @property
    def tensors(self) -> list[dict[str, Any]]:
        """The records of the tensors, in the order of the artifact."""
        tensors: list[dict[str, Any]] = self.to_json()["tensors"]
        return tensors

    @property
    def payload_bytes(self) -> int:
        """Bytes of all objects together."""
        return int(self.to_json()["payload_bytes"])

    @property
    def bits_per_weight(self) -> float:
        """Bits per element over all tensors."""
        return float(self.to_json()["bits_per_weight"])

    @property
    def warnings(self) -> list[str]:
        """What the user should know, tensor by tensor and as a whole."""
        found: list[str] = list(self.to_json()["warnings"])
        for t in self.tensors:
            found += [f'tensor "{printable(t["name"])}": {w}' for w in t.get("warnings", [])]
        return found

    def table(self) -> list[list[str]]:
        """One line a tensor: name, source types, format, method, shape, bytes, bits per weight, why."""
        lines = []
        for t in self.tensors:
            types = sorted({s["type"] for s in t["from"]})
            why = t["why"] if "fallback" not in t else f"{t['why']}; fallback: {t['fallback']}"
            lines.append(
                [
                    printable(t["name"]),
                    "+".join(types),
                    t["format"],
                    t["method"],
                    " x ".join(map(str, t["shape"])) or "scalar",
                    str(t["bytes"]),
                    f"{t['bits_per_weight']:.3f}",
                    printable(why),
                ]
            )
        return lines

    def __str__(self) -> str:
        lines = ["  ".join(line) for line in self.table()]
        total = (
            f"{len(self.tensors)} tensors, {self.payload_bytes} bytes, {self.bits_per_weight:.3f} bits/weight"
        )
        return "\n".join([*lines, *(f"warning: {w}" for w in self.warnings), total])


@dataclass(frozen=True)
class Converted(Written):
    """What was published, and the ``report``: per tensor source, method, parameters, SHA-256, errors."""

    report: dict[str, Any]


def _source_path(source: str | os.PathLike[str] | GgufFile) -> str:
    return source.path if isinstance(source, GgufFile) else path_text(source)


def plan(
    source: str | os.PathLike[str] | GgufFile,
    recipe: RecipeLike = None,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    skip_unsupported: bool = False,
    file_limit: int | None = None,
    artifact_id: bytes | None = None,
    fp8_without_scale: bool = False,
) -> Plan:
    """Plans the conversion of a model: a GGUF file (any shard), safetensors (a file, an index or a folder).

    ``recipe`` is a path of a TOML file, a :class:`Recipe`, or rules; None keeps every tensor's words.
    ``imatrix`` is an importance matrix of either form. Reads headers only.

    Raises :class:`~ninfer_rs.UnsupportedError` with every tensor that its rule cannot be applied to and every
    rule that is wrong or matches nothing, ``OSError``, :class:`~ninfer_rs.FileFormatError`.
    """
    methods: dict[str, Method] = {}
    text: tuple[str, bool, str | None]
    if recipe is None:
        text = ("{}", False, None)
    elif isinstance(recipe, (str, os.PathLike)):
        with open(recipe, encoding="utf-8") as file:
            try:
                text = (file.read(), True, path_text(recipe))
            except UnicodeDecodeError as error:
                raise UnsupportedError(f"{path_text(recipe)}: a recipe is UTF-8 text: {error}") from None
    else:
        made = recipe if isinstance(recipe, Recipe) else Recipe(recipe)
        content, methods = made._json()
        text = (content, False, None)
    _positive("file_limit", file_limit, "bytes")
    if artifact_id is not None and len(artifact_id) != 16:
        raise UnsupportedError(f"an artifact id has 16 bytes, got {len(artifact_id)}")
    options = (skip_unsupported, file_limit, artifact_id, fp8_without_scale)
    key: _Key = (_source_path(source), text, None if imatrix is None else path_text(imatrix), options)
    made_plan = Plan(key, methods)
    missing = {row[7] for row in made_plan._rows if row[7] is not None} - set(methods)
    if missing:
        raise UnsupportedError(f"the recipe names methods that only Python can give: {sorted(missing)}")
    return made_plan


def convert(
    source: str | os.PathLike[str] | GgufFile | Plan,
    output: str | os.PathLike[str],
    recipe: RecipeLike = None,
    *,
    memory: int | None = None,
    resume: bool = False,
    report: str | os.PathLike[str] | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    skip_unsupported: bool = False,
    file_limit: int | None = None,
    artifact_id: bytes | None = None,
    fp8_without_scale: bool = False,
) -> Converted:
    """Converts a model to the artifact ``output`` by a recipe; see :func:`plan` for the arguments both take.
    ``source`` may also be a :class:`Plan`.

    Everything is planned before the first byte is written. ``memory`` bounds all buffers (bytes; 256 MiB if
    not given). ``resume`` keeps what was done when the conversion is interrupted, and goes on from there when
    it is called again with the same plan; another plan, or a source that has changed, is refused. Without it
    an interrupted conversion leaves nothing behind. ``report`` is a path for the report as JSON.

    ``executor`` spreads the work over any :class:`concurrent.futures.Executor`; callables of the recipe must
    be picklable for a pool of processes. The artifact does not depend on it, nor on ``threads`` or
    ``memory``.

    ``progress`` is called with the bytes done and their total; what it raises stops the conversion.
    """
    if isinstance(source, Plan):
        given = (recipe, imatrix, file_limit, artifact_id)
        if any(g is not None for g in given) or skip_unsupported or fp8_without_scale:
            raise UnsupportedError("a plan has its recipe and options already")
        made = source
    else:
        made = plan(
            source,
            recipe,
            imatrix=imatrix,
            skip_unsupported=skip_unsupported,
            file_limit=file_limit,
            artifact_id=artifact_id,
            fp8_without_scale=fp8_without_scale,
        )
    _positive("memory", memory, "bytes")
    if report is None:
        return _run(made, output, memory, resume, threads, progress, executor)
    path = path_text(report)
    if os.path.realpath(path) == os.path.realpath(path_text(output)):
        raise UnsupportedError(f"{path}: the report and the artifact cannot be one file")
    # Begun before the work, so that a folder which cannot be written to is found out at once.
    with new_file(path) as temporary, open(temporary, "x", encoding="utf-8") as file:
        done = _run(made, output, memory, resume, threads, progress, executor)
        try:
            json.dump(done.report, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            message = f"the report cannot be written ({error.strerror}); the artifact is complete"
            raise OSError(error.errno, message, path) from None
    return done


def _positive(what: str, value: int | None, unit: str) -> None:
    if value is None:
        return
    try:
        number = operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{what} is a number of {unit}, got {value!r}") from None
    if not 0 < number < 1 << 64:
        raise UnsupportedError(f"{what} is a positive number of {unit}, got {number}")


def _run(
    made: Plan,
    output: str | os.PathLike[str],
    memory: int | None,
    resume: bool,
    threads: int | None,
    progress: Progress | None,
    executor: Executor | None,
) -> Converted:
    session = _native.ConvertSession(made._native, path_text(output), memory, thread_count(threads), resume)
    try:
        if executor is not None:
            _spread(made, session, executor, progress)
        else:
            _interruptible(progress, session.run)
            for tensor in session.remaining():
                session.store_payload(tensor, _call(made, tensor, made._methods))
                if progress is not None:
                    progress(*session.progress())
        (paths, size, found_id), text = session.finish()
    finally:
        session.close()
    return Converted(tuple(path_text(p) for p in paths), size, found_id, json.loads(text))


def _call(made: Plan, tensor: int, methods: Mapping[str, Method]) -> npt.NDArray[np.uint8]:
    """Runs a callable method and checks what it gives."""
    name, index, shape, divisors, _, rows, k, method = made._rows[tensor]
    if method is None:
        raise UnsupportedError(f'tensor "{printable(name)}" has no method of its own')
    fmt = BY_INDEX[index]
    importance: list[F32 | None] = []
    for found in made._native.importance(tensor):
        if found is None:
            importance.append(None)
        else:
            values, experts = found
            importance.append(values if experts == 1 else values.reshape(experts, -1))
    context = Context(name, fmt, tuple(shape), divisors, importance)
    result = methods[method](made._native.values(tensor).reshape(rows, k), context)
    where = f'tensor "{printable(name)}": the method {method}'
    if not isinstance(result, Tensor):
        raise UnsupportedError(f"{where} gave {type(result).__name__}, not a Tensor")
    if result.format.name != fmt.name or result.shape != tuple(shape) or result.divisors != divisors:
        raise UnsupportedError(
            f"{where} gave {result.format.name} with shape {result.shape} and {result.divisors} divisor(s); "
            f"expected {fmt.name} with shape {tuple(shape)} and {divisors}"
        )
    return payload_array(result.payload)


@lru_cache(maxsize=2)
def _plan_of(key: _Key, conversion: str) -> Plan:
    """The plan in this process. ``conversion`` is new for each conversion: a source may have changed since
    the last."""
    return Plan(key, {})


def _encode_task(key: _Key, conversion: str, tensor: int, begin: int, end: int) -> tuple[Any, Any]:
    """What a worker does for rows of a tensor."""
    return _plan_of(key, conversion)._native.encode(tensor, begin, end, 1)


def _call_task(key: _Key, conversion: str, tensor: int, name: str, method: Method) -> Any:
    """What a worker does for a tensor of a callable method."""
    return _call(_plan_of(key, conversion), tensor, {name: method})


def _spread(
    made: Plan, session: _native.ConvertSession, executor: Executor, progress: Progress | None
) -> None:
    """Has the executor work everything out, a bounded number of tasks at a time, and writes the results."""
    workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    tasks = _tasks(made, session)
    conversion = uuid.uuid4().hex
    pending: dict[Future[Any], tuple[int, tuple[int, int, int] | int]] = {}
    number = 0
    more = True
    # Of several tasks that fail the first is reported, whichever fails first: those before it are waited for.
    failed: tuple[int, BaseException] | None = None
    try:
        while more or pending or failed is not None:
            while more and failed is None and len(pending) < workers + 1:
                task = next(tasks, None)
                if task is None:
                    more = False
                    break
                if isinstance(task, int):
                    name = made._rows[task][7] or ""
                    method = made._methods[name]
                    future = executor.submit(_call_task, made._key, conversion, task, name, method)
                else:
                    future = executor.submit(_encode_task, made._key, conversion, *task)
                pending[future] = (number, task)
                number += 1
            if failed is not None and all(n > failed[0] for n, _ in pending.values()):
                raise failed[1]
            if not pending:
                break
            # An executor that is shut down cancels its work without waking those who wait for it.
            done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done or {f for f in pending if f.cancelled()}:
                n, task = pending.pop(future)
                try:
                    if future.cancelled():
                        name = printable(made._rows[task if isinstance(task, int) else task[0]][0])
                        raise UnsupportedError(f'tensor "{name}": the executor cancelled its work')
                    if isinstance(task, int):
                        session.store_payload(task, future.result())
                    else:
                        session.store(*task, *future.result())
                except Exception as error:
                    if failed is None or n < failed[0]:
                        failed = (n, error)
            if progress is not None:
                progress(*session.progress())
    finally:
        for future in pending:
            future.cancel()


def _tasks(made: Plan, session: _native.ConvertSession) -> Any:
    for tensor in session.remaining():
        if made._rows[tensor][7] is not None:
            yield tensor
        else:
            for begin, end in made._native.units(tensor, session.unit_rows(tensor)):
                yield (tensor, begin, end)
