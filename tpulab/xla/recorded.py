"""Results of programs in the course, compiled where a compiler was, shown where none is."""

from __future__ import annotations

import ast
import inspect
import json
import os
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from . import cache, entry
from .arguments import function_in
from .arguments import name_of as function_name
from .compiled import Buffer, Compiled
from .errors import CompilerMissing, DoesNotFit
from .portable import without_paths

if TYPE_CHECKING:
    from .lowering import Call

STORED = Path(__file__).parents[1] / "data" / "compiled"
RECORD_TO = "TPULAB_RECORD_COMPILED"  # a folder; set while notebooks are built where a compiler is


def name_of(target: str, call: Call, axes: Mapping[str, int] | None, options: Mapping[str, Any], what: str = "") -> str:
    """Name a result by all that is asked: target, function, shapes, shardings, mesh, options."""
    asked = (
        [_plain(arg) for arg in call.args],
        {name: _plain(value) for name, value in sorted(call.kwargs.items())},
        _plain(call.in_shardings),
        _plain(call.out_shardings),
        sorted(call.jit_options.items()),
        sorted(axes.items()) if axes else None,
        sorted((option, str(value)) for option, value in options.items()),
        what,
    )
    place = target.replace(":", "-")
    return f"{place}.{call.name}.{cache.key(*asked)[:12]}"


def read(name: str, call: Call, missing: CompilerMissing) -> Compiled:
    """Find a stored result of the very same program.

    Raises:
        CompilerMissing: none is stored, or the function has changed since; `missing` and that.
        DoesNotFit: that is what the compiler said.
    """
    stored = read_bytes(name, call, missing)
    if stored[:1] == b"{":
        facts = json.loads(stored)
        buffers = [Buffer(**buffer) for buffer in facts.pop("buffers")]
        raise DoesNotFit(**facts, buffers=buffers)
    try:
        found = entry.unpack(stored)
    except ValueError:
        raise missing from None
    packages = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    note = f"compiled with {packages} on {found.date}; stored with the course"
    return replace(found, recorded=True, notes=(*found.notes, note))


def write(name: str, call: Call, compiled: Compiled) -> None:
    """Store a result, while the course is being built."""
    write_bytes(name, call, lambda: entry.pack(without_paths(compiled)))


def write_error(name: str, call: Call, error: DoesNotFit) -> None:
    """Store that a program does not fit: that is a result too."""

    def facts() -> bytes:
        told = {"message": str(error), "needed_bytes": error.needed_bytes, "available_bytes": error.available_bytes}
        return json.dumps({**told, "buffers": [asdict(buffer) for buffer in error.buffers]}).encode()

    write_bytes(name, call, facts)


def read_bytes(name: str, call: Call, missing: CompilerMissing) -> bytes:
    """Find what is stored under a name, if it is of this very function.

    Raises:
        CompilerMissing: none is, or the function has changed since.
    """
    try:
        mark, _, body = (STORED / f"{name}.z").read_bytes().partition(b"\n")
        if mark.decode() == fingerprint(call.fn):
            return zlib.decompress(body)
        why = f"the stored result of {call.name} is of another version of it"
    except (OSError, zlib.error, UnicodeDecodeError):
        why = f"no result of {call.name} with these arguments is stored with the course"
    raise CompilerMissing(f"{missing}; {why}") from None


def write_bytes(name: str, call: Call, make: Callable[[], bytes]) -> None:
    """Store bytes under a name, with the mark of the function, while the course is being built."""
    if folder := os.environ.get(RECORD_TO):
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{name}.z").write_bytes(fingerprint(call.fn).encode() + b"\n" + zlib.compress(make(), 9))


def fingerprint(fn: Any) -> str:
    """Mark a function by what it says: its source without comments and layout, and that of helpers it names.

    Example:
        >>> def double(x):
        ...     return 2 * x
        >>> len(fingerprint(double))
        20
    """
    return cache.key(*_texts(fn, set()))[:20]


def _texts(fn: Any, seen: set[int]) -> Iterator[str]:
    """Give the text of a function, then of each function and the value of each constant that it names."""
    if hasattr(fn, "func"):
        yield repr((_plain(list(fn.args)), _plain(fn.keywords)))
    fn = function_in(fn)
    if id(fn) in seen:
        return
    seen.add(id(fn))
    yield _text(fn)
    if not isinstance(fn, FunctionType):
        return
    closed = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            closed[name] = cell.cell_contents
        except ValueError:
            continue
    for name in sorted({*_names(fn.__code__), *closed}):
        value = closed.get(name, fn.__globals__.get(name))
        if isinstance(value, (bool, int, float, str, tuple)):
            yield f"{name}={value!r}"
        elif callable(value) and getattr(function_in(value), "__module__", None) == fn.__module__:
            yield from _texts(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    """Give all names that a function's code uses, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _text(fn: Any) -> str:
    """Give a function's source, laid out afresh; its plain text where that is no whole statement."""
    try:
        text = textwrap.dedent(inspect.getsource(fn))
    except (OSError, TypeError):
        return function_name(fn)
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda in the middle of a call
        return " ".join(text.split())


def _plain(value: Any) -> str:
    """Put an argument into words that are the same with every version: shapes and types, specs, names."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    def is_spec(node: Any) -> bool:
        return node is None or isinstance(node, (PartitionSpec, NamedSharding))

    def leaf(node: Any) -> str:
        if is_spec(node):
            return "whole" if node is None else f"P{tuple(getattr(node, 'spec', node))!r}"
        if hasattr(node, "shape") and hasattr(node, "dtype"):
            return f"{node.dtype}{list(node.shape)}"
        return function_name(node) if callable(node) else repr(node)

    leaves, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_spec)
    return ";".join(f"{jax.tree_util.keystr(path)}={leaf(node)}" for path, node in leaves)
