"""Results kept on disk, so that the same program is compiled once."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

FOLDER = "TPULAB_CACHE"
MOST_BYTES = 256 * 2**20
_OFF = {"0", "off", "no", "false"}


def folder() -> Path | None:
    """Give the folder that results are kept in; None where TPULAB_CACHE is "0" or "off"."""
    named = os.environ.get(FOLDER, "").strip()
    if named.lower() in _OFF:
        return None
    if named:
        return Path(named).expanduser() / "xla"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpulab", appauthor=False)) / "xla"


def key(*parts: object) -> str:
    """Give a file name for whatever a result depends on.

    Example:
        >>> key("v5e:2x2", {"a": 1}) == key("v5e:2x2", {"a": 1}) != key("v5e:2x2", {"a": 2})
        True
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:40]


def read(name: str) -> bytes | None:
    """Read an entry whole and undamaged; None when there is none."""
    home = folder()
    if home is None:
        return None
    path = home / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[32:]
    if hashlib.sha256(body).digest() != data[:32]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the least recently used goes first
    return body


def write(name: str, body: bytes) -> None:
    """Keep an entry; a folder that cannot be written keeps nothing."""
    home = folder()
    if home is None or len(body) > MOST_BYTES // 4:
        return
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=home)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(hashlib.sha256(body).digest() + body)
            Path(temporary).replace(home / name)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        _shrink(home)


def _shrink(home: Path) -> None:
    """Take the least recently used entries away until the rest is small enough."""
    found = []
    for path in home.iterdir():
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
