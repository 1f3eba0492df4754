"""Results of the TPU compiler that are stored with the course, kept up to date without churn."""

import shutil
import zlib
from dataclasses import replace
from pathlib import Path

from tpulab.xla import entry


def update(folder: Path, new: Path, *, everything: bool) -> list[Path]:
    """Bring stored results up to date.

    What differs in nothing but its date stays, so that a rebuild changes no file.

    Args:
        folder: where results are stored.
        new: results just made.
        everything: all results of the course are among the new ones, so that any other is left over.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(new.glob("*.z")):
        kept = folder / path.name
        if not kept.exists() or _undated(kept) != _undated(path):
            shutil.copyfile(path, kept)
            written.append(kept)
    if everything:
        for path in folder.glob("*.z"):
            if not (new / path.name).exists():
                path.unlink()
    return written


def _undated(path: Path) -> object:
    """Give what a stored result says, its date left out."""
    mark, _, body = path.read_bytes().partition(b"\n")
    told = zlib.decompress(body)
    try:
        return mark, replace(entry.unpack(told), date="")
    except ValueError:  # no program: that one does not fit, or what each pass made
        return mark, told
