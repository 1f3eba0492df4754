"""Names of a package that are loaded when they are first used, so that importing it stays instant."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def loader(
    package: str, home_of: Mapping[str, str], rooms: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__`.

    Args:
        package: its `__name__`.
        home_of: each public name → the module that has it.
        rooms: public names that are modules themselves.

    Returns:
        The two functions. The first raises AttributeError for other names and lists those that there are.

    Example:
        >>> get, _ = loader("tpulab", {"measure": "timing"})
        >>> get("measure").__module__
        'tpulab.timing'
    """
    names = sorted([*home_of, *rooms])

    def get(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(f".{home_of[name]}", package), name)
        if name in names:
            return import_module(f".{name}", package)
        raise AttributeError(f"{package} has no name {name!r}; it offers {', '.join(names)}")

    def listed() -> list[str]:
        return sorted([*vars(sys.modules[package]), *names])

    return get, listed
