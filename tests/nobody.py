"""Tests as a user who may not write everywhere: root, as which CI runs, never meets a read-only folder."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Run the body as a user who can read this folder and not write in it."""
    is_root = os.name == "posix" and os.geteuid() == 0
    folder.chmod(0o555)
    try:
        if is_root:
            os.seteuid(_NOBODY)
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
