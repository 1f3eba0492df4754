"""Arguments of a function as they are typed: 2048x1024:bf16, n=3, data=2, data,-."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .status import WRONG_USE, Stop

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "pred": "bool", "bool": "bool",
    "s64": "int64", "s32": "int32", "s16": "int16", "s8": "int8", "s4": "int4",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4",
    "c64": "complex64", "c128": "complex128",
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8": "float8_e4m3fn",
}  # fmt: skip
_SHAPE = re.compile(r"(?P<dims>\d{1,12}(?:x\d{1,12})*)?(?::(?P<dtype>\w+))?")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<rest>.*)", re.DOTALL)
_EXAMPLES = "2048x1024:bf16, 4096 (f32), :f32 (a scalar)"


def argument(text: str) -> Any:
    """Read one argument: a shape, or a tree of shapes in Python's own brackets.

    Example:
        >>> argument("8x128:bf16"), argument(":s32")
        (ShapeDtypeStruct(shape=(8, 128), dtype=bfloat16), ShapeDtypeStruct(shape=(), dtype=int32))
        >>> argument("{'w': '4x2', 'b': '2'}")["b"]
        ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    text = text.strip()
    if text[:1] not in ("{", "[", "("):
        return _shape(text)
    try:
        tree = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise Stop(
            f"""--shape: a tree is written like "{{'w': '4x2:bf16', 'b': '2'}}"; got {text!r}""", WRONG_USE
        ) from None
    return _tree(tree, text)


def named(texts: Sequence[str], option: str, example: str) -> dict[str, str]:
    """Read options of the form name=value, each name once.

    Example:
        >>> named(["n=3", "axis=-1"], "--static", "n=3")
        {'n': '3', 'axis': '-1'}
    """
    found: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text.strip())
        if not match:
            raise Stop(f"{option} is name=value, e.g. {option} {example}; got {text!r}", WRONG_USE)
        if match["name"] in found:
            raise Stop(f"{option} gives {match['name']} twice", WRONG_USE)
        found[match["name"]] = match["rest"]
    return found


def shapes(texts: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Read --shape options: positional ones in order, and those with a name in front."""
    positional = [text for text in texts if not _NAMED.fullmatch(text.strip())]
    by_name = named([text for text in texts if text not in positional], "--shape", "x=2048x1024:bf16")
    return [argument(text) for text in positional], {name: argument(text) for name, text in by_name.items()}


def statics(texts: Sequence[str]) -> dict[str, Any]:
    """Read --static options; a value is Python's (3, 0.5, True, None, (1, 2)), anything else a text.

    Example:
        >>> statics(["n=3", "axes=[0, 1]", "mode=same"])
        {'n': 3, 'axes': (0, 1), 'mode': 'same'}
    """
    return {name: _literal(text) for name, text in named(texts, "--static", "n=3").items()}


def mesh(texts: Sequence[str]) -> dict[str, int] | None:
    """Read --mesh options; None when there are none.

    Example:
        >>> mesh(["data=2,model=4"])
        {'data': 2, 'model': 4}
    """
    axes = named([part for text in texts for part in text.split(",")], "--mesh", "data=2,model=2")
    for name, size in axes.items():
        if not size.isdecimal() or int(size[:9]) < 1:
            raise Stop(f"--mesh {name} is a whole number of devices from 1; got {size!r}", WRONG_USE)
    return {name: int(size) for name, size in axes.items()} or None


def specs(texts: Sequence[str], arguments: int, axes: dict[str, int] | None) -> list[PartitionSpec] | None:
    """Read --spec options, one for each argument in order; arguments without one stay whole."""
    from jax.sharding import PartitionSpec

    if not texts:
        return None
    if axes is None:
        raise Stop("--spec names axes of a mesh; give it too, e.g. --mesh data=2,model=2", WRONG_USE)
    if len(texts) > arguments:
        raise Stop(f"there are {len(texts)} --spec for {arguments} --shape; give at most one each, in order", WRONG_USE)
    found = [PartitionSpec(*(_axis(part, axes, text) for part in text.split(","))) for text in texts]
    return found + [PartitionSpec()] * (arguments - len(found))


def _axis(part: str, axes: dict[str, int], text: str) -> Any:
    """Read one entry of a spec: an axis, several joined by +, or - for none."""
    part = part.strip()
    if part in ("-", "", "None"):
        return None
    names = part.split("+")
    if unknown := [name for name in names if name not in axes]:
        raise Stop(f"--spec {text!r}: the mesh has {', '.join(axes)}, not {unknown[0]!r}; - is no axis", WRONG_USE)
    return names[0] if len(names) == 1 else tuple(names)


def _shape(text: str) -> Any:
    import jax

    match = _SHAPE.fullmatch(text)
    if not match or not text or text == ":":
        raise Stop(f"--shape is sizes and a type: {_EXAMPLES}; got {text!r}", WRONG_USE)
    dtype = match["dtype"] or "f32"
    dims = tuple(map(int, match["dims"].split("x"))) if match["dims"] else ()
    try:
        kind = jax.numpy.dtype(_DTYPES.get(dtype, dtype))
    except TypeError:
        known = ", ".join(name for name in _DTYPES if not name.startswith("i") and name not in ("f8", "bool"))
        raise Stop(f"--shape {text!r}: there is no type {dtype!r}; types are {known}", WRONG_USE) from None
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise Stop(f"--shape {text!r}: JAX has types of 64 bits only where JAX_ENABLE_X64=1 is set", WRONG_USE)
    return jax.ShapeDtypeStruct(dims, kind)


def _tree(node: Any, text: str) -> Any:
    if isinstance(node, str):
        return _shape(node.strip())
    if isinstance(node, dict):
        return {key: _tree(value, text) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_tree(value, text) for value in node)
    raise Stop(f"--shape {text!r}: inside a tree each shape is a text, e.g. '4x2:bf16'; got {node!r}", WRONG_USE)


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text

    def hashable(node: Any) -> Any:
        return tuple(map(hashable, node)) if isinstance(node, (list, tuple)) else node

    return hashable(value)
