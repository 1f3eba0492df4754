"""A user's own function: found by name, bound to what it is called with, its errors told by file and line."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import first_line
from .status import UNFINISHED, WRONG_USE, Stop

_OURS = Path(__file__).parent.parent
_PYTHON = Path(contextlib.__file__).parent


def find(what: str) -> Callable:
    """Import a function named MODULE:FUNCTION or FILE.py:FUNCTION; the working directory is searched first.

    Raises:
        Stop: there is no such module or function, or it cannot be imported.
    """
    place, _, name = what.rpartition(":")
    if not place or not name:
        known = f", e.g. {what}:{_defined(Path(what))[0]}" if _defined(Path(what)) else ""
        raise Stop(f"what to look at is MODULE:FUNCTION or FILE.py:FUNCTION{known}; got {what!r}", WRONG_USE)
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = [key for key, value in vars(module).items() if _is_own(value, module)]
            there = f"; it has {', '.join(own[:12])}" if own else ""
            raise Stop(f"{place} has no {name!r}{there}", WRONG_USE)
        found = getattr(found, part)
    if not callable(found):
        raise Stop(f"{what} is no function: its type is {type(found).__name__}", WRONG_USE)
    return found


def bind(
    fn: Callable, shapes: list[Any], by_name: dict[str, Any], statics: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Lay out a call: shapes in order over the parameters that have no value yet.

    Returns:
        Positional and keyword arguments, static ones among both.

    Raises:
        Stop: they do not fit the function's parameters.
    """
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        return shapes, {**by_name, **statics}
    if both := by_name.keys() & statics.keys():
        raise Stop(f"{min(both)} is given by --shape and by --static", WRONG_USE)
    rest, keywords, positional = list(shapes), {**by_name, **statics}, []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        if not rest and parameter.kind is not parameter.POSITIONAL_ONLY:
            break
        if parameter.name in keywords:
            positional.append(keywords.pop(parameter.name))
        elif rest:
            positional.append(rest.pop(0))
    positional += rest
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        wants = f"{getattr(fn, '__name__', 'the function')}{signature}"
        line = f"{error}: {wants} got {len(shapes)} --shape"
        line += f" and {', '.join([*by_name, *statics])} by name" if by_name or statics else ""
        raise Stop(f"{line}; give one --shape for each array and --static name=value for the rest", WRONG_USE) from None
    return positional, keywords


@contextlib.contextmanager
def running(name: str, fn: Callable | None = None) -> Iterator[None]:
    """Let the user's code run: what it prints goes to standard error, what it raises becomes one line.

    Errors that no line of the user's has raised come through as they are.

    Args:
        name: as the user wrote it.
        fn: files in its folder are the user's too, wherever they are installed.
    """
    code = getattr(inspect.unwrap(fn), "__code__", None) if fn else None
    home = Path(code.co_filename).parent if code else None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Stop:
        raise
    except (Exception, SystemExit) as error:
        if frame := _own_frame(error, home):
            raise Stop(f"{name} raises {_said(error)}, at {_place(frame)}", UNFINISHED) from None
        if isinstance(error, SystemExit):
            raise Stop(f"{name} ends the program (SystemExit)", UNFINISHED) from None
        raise


def _module(place: str) -> Any:
    """Import a module by name, or a file by its path."""
    path = Path(place)
    here = Path(*place.split(".")).with_suffix(".py")
    is_path = path.suffix == ".py"
    if is_path and not path.is_file():
        raise Stop(f"there is no file {place}", WRONG_USE)
    if not is_path and not all(part.isidentifier() for part in place.split(".")):
        raise Stop(f"{place!r} is no module's name; a file is named by its path, e.g. model.py:step", WRONG_USE)
    sys.path.insert(0, str((path if is_path else here).parent.absolute()) if is_path else str(Path.cwd()))
    alone = path if is_path else here if "." not in place and here.is_file() else None
    with running(place):
        try:
            return _from_file(alone) if alone else importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and place.split(".")[: error.name.count(".") + 1] == error.name.split("."):
                raise Stop(f"there is no module {place!r}, here or installed", WRONG_USE) from None
            raise Stop(f"{place} needs the package {error.name!r}, which is not installed here", UNFINISHED) from None
        except SyntaxError as error:
            file = Path(error.filename or place).name
            raise Stop(f"{file}, line {error.lineno}: {error.msg}", UNFINISHED) from None


def _from_file(path: Path) -> Any:
    """Import a file, also one that is named like a module of Python's."""
    spec = importlib.util.spec_from_file_location(path.stem, path.absolute())
    if spec is None or spec.loader is None:
        raise Stop(f"{path} cannot be imported", WRONG_USE)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _defined(path: Path) -> list[str]:
    """List the functions of a file without running it; [] for what is none."""
    try:
        tree = ast.parse(path.read_bytes()) if path.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def _is_own(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _own_frame(error: BaseException, home: Path | None) -> traceback.FrameSummary | None:
    """Find the innermost line that is the user's: neither ours nor of an installed package or Python itself."""
    mine = None
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        foreign = _OURS in file.parents or _PYTHON in file.parents or "site-packages" in file.parts
        if home in file.parents or not (foreign or frame.filename.startswith("<")):
            mine = frame
    return mine


def _said(error: BaseException) -> str:
    line = first_line(error).rstrip(".")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _place(frame: traceback.FrameSummary) -> str:
    text = f" ({frame.line})" if frame.line else ""
    return f"{Path(frame.filename).name}:{frame.lineno}{text}"
