"""The words of feedback: values, calls and errors as a learner reads them."""

import itertools
import re
from collections.abc import Iterable
from typing import Any

from ..compat import is_traced
from ..errors import first_line

_MAX_ITEMS, _MAX_DEPTH = 12, 5  # of containers in feedback
_MAX_ARGUMENT = 100  # characters of one argument in a call


def describe(value: Any) -> str:
    """Say in a few characters what a value is; never raises, whatever the value is.

    Scalars and vectors of at most 6 numbers are written out; other arrays as dtype and shape. Containers show
    their first contents. Floats have six digits, large ones below 10**15 all.

    Example:
        >>> import numpy as np
        >>> describe({"w": np.zeros((3, 4), np.float32), "n": 2})
        "{'w': f32[3,4], 'n': 2}"
        >>> describe(np.array([1.5, 2.0], np.float32))
        'f32[2] (1.5, 2)'
        >>> describe(list(range(100)))
        '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 88 more]'
    """
    try:
        return _describe(value)
    except (Exception, KeyboardInterrupt, SystemExit):
        return f"an object of type {type(value).__name__}"


def _describe_argument(value: Any) -> str:
    """Say what a value is, a large container without numbers, then with less of its inside."""
    text = describe(value)
    if len(text) <= _MAX_ARGUMENT or not _is_container(value):
        return text
    try:
        for depth, items in ((_MAX_DEPTH, _MAX_ITEMS), (2, _MAX_ITEMS), (2, 4), (1, 4)):
            text = _describe(value, depth, items, numbers=False)
            if len(text) <= _MAX_ARGUMENT:
                break
    except (Exception, KeyboardInterrupt, SystemExit):
        pass  # the longer text is one, too
    return text


def _describe(value: Any, depth: int = _MAX_DEPTH, items: int = _MAX_ITEMS, *, numbers: bool = True) -> str:
    if _is_container(value):
        return _describe_container(value, depth, items, numbers)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _describe_array(value, numbers)
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    text = repr(value) if not isinstance(value, float) else _describe_float(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _describe_float(value: float) -> str:
    """Give six digits, or all where six would not reach the point."""
    return float.__repr__(value).removesuffix(".0") if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple)) and not hasattr(value, "_fields")


def _describe_container(value: Any, depth: int, items: int, numbers: bool) -> str:
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]") if isinstance(value, list) else ("(", ")")
    if depth <= 0:
        return f"{opening}...{closing}" if value else opening + closing

    def inner(item: Any) -> str:
        return _describe(item, depth - 1, items, numbers=numbers)

    first = list(itertools.islice(value.items() if isinstance(value, dict) else value, items))
    shown = [f"{inner(key)}: {inner(item)}" for key, item in first] if isinstance(value, dict) else map(inner, first)
    shown = list(shown)
    if len(value) > len(first):
        shown.append(f"and {len(value) - len(first):,} more")
    comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
    return f"{opening}{', '.join(shown)}{comma}{closing}"


def _describe_array(value: Any, numbers: bool) -> str:
    import jax
    import numpy as np

    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key[{','.join(map(str, value.shape))}]"
    name = str(value.dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            name = short + name.removeprefix(long)
            break
    text = f"{name}[{','.join(map(str, value.shape))}]"
    if not numbers or is_traced(value) or isinstance(value, jax.ShapeDtypeStruct) or value.ndim > 1:
        return text
    if not 0 < value.size <= 6:
        return text
    listed = ", ".join(
        f"{item:.6g}" if name[0] in "fb" and name != "bool" else str(item)
        for item in np.asarray(value).ravel().tolist()
    )
    return f"{text} ({listed})"


def call_text(answer: Any, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None, name: str = "") -> str:
    """Write a call as feedback shows it, e.g. `f(f32[3], 2)` between backticks; large containers in outline."""
    shown = [_describe_argument(item) for item in args]
    shown += [f"{key}={_describe_argument(item)}" for key, item in (kwargs or {}).items()]
    return f"`{name or describe(answer)}({', '.join(shown)})`"


# What a learner most often did to get this error, by the name of its class.
_CAUSES = {
    "TracerBoolConversionError": "A Python `if` or `while` met a traced value, which has no truth value yet.",
    "TracerArrayConversionError": "NumPy was given a traced value; use `jnp` so that JAX can record it.",
    "TracerIntegerConversionError": "A traced value was used where Python needs a plain integer.",
    "ConcretizationTypeError": "A traced value was used where Python needs a plain number.",
    "UnexpectedTracerError": "A traced value was kept outside the function that was being traced.",
    "SystemError": "Perhaps it returned a container that holds itself.",
    "RecursionError": "The function calls itself without an end.",
}


def quoted(error: BaseException) -> str:
    """Write an exception as a sentence's end: its class, the first line of its message, one full stop.

    Example:
        >>> quoted(ValueError("no such shape.")), quoted(KeyError())
        ('`ValueError`: no such shape.', '`KeyError`.')
    """
    first = first_line(error)
    first = first if len(first) <= 200 else first[:200] + "…"
    return ended(f"`{type(error).__name__}`{': ' + first if first else ''}")


def ended(text: str) -> str:
    """Put a full stop behind a text, unless it ends like a sentence already."""
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def one_line(text: str) -> str:
    """Make one line of a text, without what steers a terminal: who sends it shall not write on the reader's screen."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


_NO_FUNCTION = re.compile(r"\b(pmap|vmap|jit|grad|value_and_grad)\(\) missing 1 required positional argument: 'fun'")


def likely_cause(error: BaseException) -> str:
    """Say what a learner most often did to get an error; "" when that is anybody's guess."""
    first = first_line(error)
    if isinstance(error, TypeError) and (found := _NO_FUNCTION.search(first)):
        name = f"jax.{found.group(1)}"
        return f"`@{name}(…)` calls `{name}` before there is a function; write `@partial({name}, …)`."
    if isinstance(error, TypeError) and "positional argument" in first:
        return "Compare your function's arguments with the stub's."
    return _CAUSES.get(type(error).__name__, "")
