"""How a check says what it found: the three ways to stop, and the comparisons that lead there.

A check is a plain function that returns when the answer is right and otherwise leaves by one of the
exceptions here. `attempt` runs the learner's function, `expect_close` and `expect` compare.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from ..compat import is_traced
from .words import call_text, describe, ended, likely_cause, quoted


class NotYet(Exception):
    """The answer is wrong; the message is the feedback."""


class NotAttempted(Exception):
    """The stub is still as it was handed out."""


class CannotCheck(Exception):
    """This machine lacks what the check needs; the message says what."""


_MAX_NESTING = 100  # of an answer's results


def attempt(answer: Callable[..., Any], *args: Any, name: str = "", **kwargs: Any) -> Any:
    """Call the learner's function on copies of the arguments and return what it gives.

    Containers and NumPy arrays are copied, so that an answer that changes its arguments cannot change
    what the check compares with.

    Args:
        answer: the learner's function.
        *args: positional arguments.
        name: how feedback names the function; its own name by default.
        **kwargs: keyword arguments.

    Raises:
        NotAttempted: the stub's bare `NotImplementedError`.
        NotYet: any other exception; says what went in and the exception's first line.
    """
    try:
        return answer(*(_copied(item) for item in args), **{key: _copied(item) for key, item in kwargs.items()})
    except NotImplementedError as error:
        if not error.args:
            raise NotAttempted from None
        raise _raised(error, call_text(answer, args, kwargs, name)) from error
    except (NotYet, NotAttempted, CannotCheck):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise _raised(error, call_text(answer, args, kwargs, name)) from error


def with_flat_results(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap an answer so that results without an end never reach JAX, which would lose count of its recursion for good.

    The wrapper is a plain function, also where the answer is none (`np.add`) and JAX could not remember it. What JAX
    has compiled already stays as it is, with its `lower` and its cache. A function that an answer returns is wrapped
    likewise.

    Args:
        answer: the learner's function.
        name: how feedback names it.
    """
    if hasattr(answer, "lower"):
        return answer

    @functools.wraps(answer, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        result = answer(*args, **kwargs)
        level = {id(result): result}
        for _ in range(_MAX_NESTING):
            inner = itertools.chain.from_iterable(
                item.values() if isinstance(item, dict) else item
                for item in level.values()
                if isinstance(item, (dict, list, tuple))
            )
            level = {id(item): item for item in inner if isinstance(item, (dict, list, tuple))}
            if not level:
                return with_flat_results(result, f"{name}(…)") if isinstance(result, FunctionType) else result
        raise NotYet(
            f"`{name}` returned a container that holds itself, or more than {_MAX_NESTING} inside one another. "
            "Return arrays, or a few of them in a tuple, list or dict."
        )

    call.__name__ = describe(answer)
    return call


def _copied(value: Any) -> Any:
    import numpy as np

    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value) if isinstance(value, np.ndarray) else value


def _raised(error: BaseException, call: str) -> NotYet:
    cause = likely_cause(error) or "Run your function on a small example of your own to see where."
    return NotYet(f"{call} raised {quoted(error)} {cause}")


def expect(condition: Any, feedback: str) -> None:
    """Leave with `NotYet(feedback)` unless `condition` holds."""
    if not condition:
        raise NotYet(feedback)


def expect_close(
    got: Any,
    expected: Any,
    *,
    call: str,
    cause: str = "",
    mistakes: Iterable[tuple[Any, str]] = (),
    rtol: float = 1e-4,
    atol: float = 1e-5,
    dtype: bool = False,
) -> None:
    """Compare what came out with what was expected, leaf by leaf.

    Args:
        got: the answer's output, any pytree.
        expected: what it should be: same containers, shapes and values. Reference values come from a
            way other than the solution's wherever there is one.
        call: what went in, as `call_text` writes it.
        cause: the sentence for a mismatch that no known mistake explains.
        mistakes: pairs (what a known mistake would give, the sentence that names the mistake).
        rtol: relative tolerance of floats.
        atol: absolute tolerance of floats.
        dtype: also demand equal dtypes.

    Raises:
        NotYet: with what went in, what came out, what was expected and the likely cause.
    """
    difference = _difference(got, expected, rtol, atol, dtype)
    if not difference:
        return
    for value, sentence in mistakes:
        if not _difference(got, value, rtol, atol, dtype=False):
            cause = sentence
            break
    raise NotYet(f"{call} gave {ended(difference)} {cause}".rstrip())


def is_close(got: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> bool:
    """Say whether `expect_close` would let the two pass as equal."""
    return not _difference(got, expected, rtol, atol, dtype=False)


def _difference(got: Any, expected: Any, rtol: float, atol: float, dtype: bool) -> str:
    """Describe the first difference as "X; expected Y", or "" when there is none."""
    import jax
    import numpy as np

    got_leaves, got_tree = jax.tree.flatten(got)
    expected_leaves, expected_tree = jax.tree.flatten(expected)
    whole = f"{describe(got)}; expected {describe(expected)}"
    if got_tree != expected_tree:
        return whole
    for mine, theirs in zip(got_leaves, expected_leaves, strict=True):
        if is_traced(mine):
            return "a traced value that escaped from its function; expected an array"
        try:
            mine_array, theirs_array = np.asarray(mine), np.asarray(theirs)
        except Exception:
            return whole
        if mine_array.shape != theirs_array.shape:
            return whole
        if dtype and mine_array.dtype != theirs_array.dtype:
            return whole
        difference = _value_difference(mine_array, theirs_array, rtol, atol)
        if difference:
            return difference if len(expected_leaves) == 1 else f"{difference} in one of its parts"
    return ""


def _value_difference(mine: Any, theirs: Any, rtol: float, atol: float) -> str:
    import numpy as np

    if theirs.dtype.kind in "OUSb" or mine.dtype.kind in "OUS":
        return _other_difference(mine, theirs)
    wide = np.complex128 if "c" in (mine.dtype.kind, theirs.dtype.kind) else np.float64
    mine, theirs = mine.astype(wide), theirs.astype(wide)
    if np.allclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    if mine.size <= 6:
        return f"{_numbers(mine)}; expected {_numbers(theirs)}"
    if np.isnan(mine).any() and not np.isnan(theirs).any():
        return f"NaN in {int(np.isnan(mine).sum())} of {mine.size} places; expected none"
    at = tuple(int(i) for i in np.argwhere(~np.isclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True))[0])
    return f"{mine[at]:.6g} at index {at}; expected {theirs[at]:.6g}"


def _other_difference(mine: Any, theirs: Any) -> str:
    """Compare texts, truth values and objects, for which near is no word."""
    import numpy as np

    if np.array_equal(mine, theirs):
        return ""
    if mine.size <= 6:
        return f"{describe(mine.tolist())}; expected {describe(theirs.tolist())}"
    at = next(at for at in np.ndindex(mine.shape) if mine[at] != theirs[at])
    return f"{describe(mine[at])} at index {at}; expected {describe(theirs[at])}"


def _numbers(array: Any) -> str:
    numbers = [f"{item:.6g}" for item in array.ravel().tolist()]
    return numbers[0] if array.ndim == 0 else "[" + ", ".join(numbers) + "]"


def primitives(function: Callable[..., Any], *args: Any) -> list[str]:
    """List the primitives that `function` records on `args`, inner jaxprs included.

    Used where an exercise asks for a transformation or a `lax` construct, so that plain Python or
    NumPy that happens to give the right numbers does not pass.

    Raises:
        NotYet: the function cannot be traced; says why.

    Example:
        >>> import jax.numpy as jnp
        >>> primitives(lambda x: jnp.sin(x) * 2.0, 1.0)
        ['sin', 'mul']
    """
    import jax

    jaxpr = attempt(lambda *values: jax.make_jaxpr(function)(*values), *args, name=describe(function))
    return list(_walk(jaxpr.jaxpr))


def _walk(jaxpr: Any) -> Iterable[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for parameter in equation.params.values():
            for item in parameter if isinstance(parameter, (list, tuple)) else (parameter,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from _walk(inner)
