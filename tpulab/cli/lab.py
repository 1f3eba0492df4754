"""Hand the notebooks out: the learner's folder gets what is new and loses nothing that is theirs."""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..learn.store import sweep, write_json
from .status import UNFINISHED, WRONG_USE, Stop

MANIFEST = ".tpulab.json"
_FORMAT = 1
# Of a checkout: what git or the course own, and what is removed or made anew without asking.
_OF_CHECKOUT = (".git", ".ci", ".venv", "benchmarks", "build", "course", "dist", "notebooks", "requirements", "tests")
_PACKAGE = Path(__file__).parent.parent
_NO_NOTEBOOK = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading another file raises


@dataclass(frozen=True)
class HandedOut:
    """What a hand-out did, by notebook name.

    Args:
        folder: where.
        new: brought for the first time, or again because they were missing.
        updated: not touched by the learner, replaced by this version.
        same: already this version.
        kept: the learner's own; not written to.
        beside: of the kept ones, (name, name of the new version that was put beside it).
        note: one line about a damaged list of what was handed out before, or "".
    """

    folder: Path
    new: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def lines(self) -> list[str]:
        """Say what was done, in a few lines."""
        counts = [(self.new, "new"), (self.updated, "updated"), (self.same, "unchanged"), (self.kept, "kept as yours")]
        said = ", ".join(f"{len(names)} {word}" for names, word in counts if names)
        news = [f"{name} has changes of yours; the course's new version is beside it: {b}" for name, b in self.beside]
        return [*([self.note] if self.note else []), *news, f"Notebooks in {self.folder}: {said}"]


def course_notebooks() -> list[Path]:
    """Find the course's notebooks: inside the installed package, else in the checkout around it.

    Raises:
        Stop: there are none.
    """
    places = [_PACKAGE / "notebooks"]
    if root := _checkout():
        places.append(root / "notebooks")
    for place in places:
        if found := sorted(place.glob("[0-9][0-9]_*.ipynb")):
            return found
    raise Stop(
        f"the course's notebooks are missing from {places[-1]}; in a clone build them with "
        "`python course/build.py`, otherwise install tpulab again"
    )


def absolute(folder: str, option: str) -> Path:
    """Give the folder that an option names, "~" and the working directory put in.

    Raises:
        Stop: there is no such user, or the working directory is gone.
    """
    try:
        return Path(folder).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        why = "the working directory is gone" if isinstance(error, OSError) else str(error)
        raise Stop(f"{option} {folder}: {why}; give a full path, e.g. {option} /tmp/tpulab", WRONG_USE) from None


def hand_out(notebooks: list[Path], folder: Path) -> HandedOut:
    """Copy notebooks into the learner's folder, outputs cleared; what the learner has changed stays.

    A notebook counts as touched when a source or attachment of some cell differs from what was handed out, or when
    the learner has put a link in its place. One
    that is missing is brought; one that is not touched is replaced; one that is touched, or that this
    folder's list does not know, is never written to: a new version goes beside it, once.

    Args:
        notebooks: the course's own, as `course_notebooks` gives them.
        folder: the learner's; made if it isn't there.

    Returns:
        What was done.

    Raises:
        Stop: the folder cannot be used or written; each notebook in it is then either as it was or
            wholly new.
    """
    folder = absolute(str(folder), "--work")
    _refuse_course_folder(folder, notebooks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        manifest, note = _read_manifest(folder)
        done: dict[str, list[Any]] = {"new": [], "updated": [], "same": [], "kept": [], "beside": []}
        for path in notebooks:
            fresh = _read_course(path)
            what, beside = _hand_out_one(folder, path.name, fresh, manifest)
            done[what].append(path.name)
            done["beside"] += [(path.name, beside)] if beside else []
        return HandedOut(folder, note=note, **{what: tuple(names) for what, names in done.items()})
    except OSError as error:
        raise Stop(_remedy(folder, error), UNFINISHED) from None


def _read_course(path: Path) -> dict[str, Any]:
    """Read one of the course's own notebooks, outputs cleared."""
    try:
        book = cleared(json.loads(_read_text(path)))
        fingerprint(book)
    except (*_NO_NOTEBOOK, OSError) as error:
        why = f"{path} cannot be read as a notebook ({type(error).__name__}: {error})"
        raise Stop(f"{why}; install tpulab again, or in a clone: git checkout notebooks") from None
    return book


def cleared(book: dict[str, Any]) -> dict[str, Any]:
    """Give a notebook without outputs, execution counts and what the builder notes about it."""
    cells = []
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell = cell | {"outputs": [], "execution_count": None}
        cells.append(cell)
    metadata = {name: value for name, value in book["metadata"].items() if name not in ("tpulab", "widgets")}
    return book | {"cells": cells, "metadata": metadata}


def fingerprint(book: Mapping[str, Any]) -> str:
    """Hash the cells' kinds, sources and attachments; outputs and empty cells don't count."""
    cells = [(cell["cell_type"], "".join(cell["source"]), *_attached(cell)) for cell in book["cells"]]
    kept = [(kind, source, *attached) for kind, source, *attached in cells if source.strip() or attached]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()


def _attached(cell: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """List a cell's pictures as (name, kind, content); Jupyter stores a content as one text or as its lines."""
    found = [(name, kind, data) for name, of in (cell.get("attachments") or {}).items() for kind, data in of.items()]
    return sorted((name, kind, "".join(data) if isinstance(data, list) else data) for name, kind, data in found)


def _hand_out_one(folder: Path, name: str, fresh: dict[str, Any], manifest: dict[str, Any]) -> tuple[str, str]:
    """Bring one notebook; says what was done and the name of a version put beside, or ""."""
    path, wanted = folder / name, fingerprint(fresh)
    given = manifest.get(name, {})
    there = _fingerprint_of(path)
    if there == wanted:
        what = "same"
    elif not os.path.lexists(path):
        what = "new"
    elif there and there == given.get("sources") and not path.is_symlink():
        what = "updated"
    else:
        return "kept", _put_beside(folder, name, fresh, manifest)
    if what != "same":
        write_json(path, fresh)
    if what != "same" or given.get("sources") != wanted:
        _note(folder, manifest, name, {"sources": wanted, "version": __version__})
    return what, ""


def _put_beside(folder: Path, name: str, fresh: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Write a touched notebook's new version beside it, unless it is the one handed out or already there."""
    given, wanted = manifest.get(name, {}), fingerprint(fresh)
    if wanted in (given.get("sources"), given.get("beside")):
        return ""
    other = next(other for other in _names_beside(name) if _may_take(folder / other, wanted, manifest))
    if _fingerprint_of(folder / other) != wanted:
        write_json(folder / other, fresh)
    manifest[other] = {"sources": wanted, "version": __version__}
    _note(folder, manifest, name, given | {"beside": wanted})
    return other


def _may_take(path: Path, wanted: str, manifest: dict[str, Any]) -> bool:
    """Say whether a name beside is free, holds this version already, or an earlier one that nobody touched."""
    there = _fingerprint_of(path)
    given = None if path.is_symlink() else manifest.get(path.name, {}).get("sources")
    return bool(there and there in (wanted, given)) or not os.path.lexists(path)


def _names_beside(name: str) -> Iterator[str]:
    """03_jit.ipynb → 03_jit.new.ipynb, 03_jit.new-2.ipynb, …"""
    stem, number = name.removesuffix(".ipynb"), 1
    while True:
        yield f"{stem}.new.ipynb" if number == 1 else f"{stem}.new-{number}.ipynb"
        number += 1


def _fingerprint_of(path: Path) -> str:
    """Fingerprint a file; "" for one that is missing or no notebook."""
    try:
        return fingerprint(json.loads(_read_text(path)))
    except (*_NO_NOTEBOOK, OSError):
        return ""


def _read_text(path: Path) -> str:
    """Read a file; a pipe or a device, which could make us wait for ever, counts as none."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file")
    return path.read_text(encoding="utf-8")


def _read_manifest(folder: Path) -> tuple[dict[str, Any], str]:
    """Read the list of what was handed out; of a damaged one nothing is believed."""
    try:
        stored = json.loads(_read_text(folder / MANIFEST))
        entries = stored["notebooks"]
        if stored["format"] != _FORMAT or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError
        return entries, ""
    except FileNotFoundError:
        return {}, ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, f"{MANIFEST} was damaged: every notebook that differs from the course's is treated as yours"


def _note(folder: Path, manifest: dict[str, Any], name: str, entry: dict[str, Any]) -> None:
    """Store what was handed out, right after it was: a kill in between makes a notebook count as touched."""
    manifest[name] = entry
    write_json(folder / MANIFEST, {"format": _FORMAT, "notebooks": manifest})


def _refuse_course_folder(folder: Path, notebooks: list[Path]) -> None:
    """Refuse what belongs to the course: make, git, an update or a set-up act there without looking for notebooks."""
    place, root = folder.resolve(), _checkout()
    own = [_PACKAGE, Path(sys.prefix), *(path.parent for path in notebooks)]
    own += [root / name for name in _OF_CHECKOUT] + [*root.glob(".venv*")] if root else []
    taken = {path.resolve() for path in own}
    if taken & {place, *place.parents} or (root and place == root.resolve()):
        raise Stop(
            f"{folder} belongs to the course or its Python; choose a folder of your own with --work DIR", WRONG_USE
        )


def _checkout() -> Path | None:
    """Give the checkout around the package; None for an installed one."""
    root = _PACKAGE.parent
    return root if (root / "course" / "build.py").is_file() else None


def _remedy(folder: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", None)):
        return f"no room in {folder} ({reason}); free 10 MB there or choose another folder with --work DIR"
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        what = error.filename2 or error.filename or folder  # the second is what a draft was to become
        return f"{what} is in the way ({reason}); move it or choose another folder with --work DIR"
    return f"cannot write in {folder} ({reason}); choose a folder of yours with --work DIR"
