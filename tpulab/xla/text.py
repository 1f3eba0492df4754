"""HLO from wherever a reader has it: a file, bytes, or pasted text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .module import Module, decode
from .wire import MOST_BYTES, Malformed

_MEMORY = 4 * 2**30
_REMEDY = "paste what compiled.as_text() prints, or give the bytes of as_serialized_hlo_module_proto()"

# Runs in a process of its own: XLA's parser aborts on some texts, and loops on others.
_PARSER = f"""
import sys
try:
    from jaxlib import _hlo as hlo
except ImportError:
    from jaxlib import _jax as hlo
    if not hasattr(hlo, "hlo_module_from_text"):
        from jaxlib import xla_extension as hlo
text = sys.stdin.buffer.read().decode("utf-8", "replace")
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
try:
    sys.stdout.buffer.write(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
except MemoryError:
    sys.exit("it needs more than {_MEMORY // 2**30} GiB to parse")
except Exception as error:
    sys.exit(str(error))
"""


def parse_text(text: str, timeout_s: float = 20) -> bytes:
    """Have XLA's own parser read HLO text, in a process that may die.

    Args:
        text: as `compiled.as_text()` prints it.
        timeout_s: after which the parser is ended.

    Returns:
        An HloModuleProto.

    Raises:
        Malformed: the parser refuses the text, dies of it or does not end.
    """
    if len(text) > MOST_BYTES:
        raise Malformed(f"it has {len(text):,} characters; more than {MOST_BYTES:,} are not read")
    command = [sys.executable, "-P", "-c", _PARSER]  # -P: no module of the working directory is taken for jaxlib
    try:
        done = subprocess.run(command, input=text.encode("utf-8", "replace"), capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Malformed(f"XLA's parser did not end within {timeout_s:g} s; {_REMEDY}") from None
    if done.returncode < 0 or done.returncode > 2 or (done.returncode == 0 and not done.stdout):
        raise Malformed(f"XLA's parser crashed on it; {_REMEDY}")
    if done.returncode:
        raise Malformed(f"XLA's parser stops at {_reason(done.stderr.decode('utf-8', 'replace'))}")
    return done.stdout


def _reason(words: str) -> str:
    """Find the sentence and the line in what the parser wrote."""
    places = re.findall(r"was parsing (\d+):\d+: error: (.*)", words)
    # The parser lists all that it tried; a line that ends in a colon only introduces the next.
    place = next((place for place in places if not place[1].endswith(":")), places[0] if places else None)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    reason = f"line {place[0]}: {place[1]}" if place else (lines or ["nothing"])[-1]
    return reason if len(reason) <= 200 else f"{reason[:199]}…"


def load(source: str | bytes | Path) -> Module:
    """Read an HLO program from a file, its bytes, or pasted text.

    Args:
        source: a path (.pb, .hlo, .txt: told apart by what is in them), the bytes, or the text itself.

    Raises:
        Malformed: it is no HLO program, or a damaged one.
        OSError: the file cannot be read.
    """
    if isinstance(source, str):
        source = source.encode("utf-8", "surrogateescape") if "\n" in source or "HloModule" in source else Path(source)
    if isinstance(source, Path):
        source = _bytes(source)
    if not isinstance(source, bytes | bytearray | memoryview):
        raise TypeError(f"read takes a path, bytes or text; got {type(source).__name__}")
    data = bytes(source)
    text = _text(data)
    return decode(data) if text is None else decode(parse_text(text))


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)  # decode and parse_text refuse what is longer


def _text(data: bytes) -> str | None:
    """Give text if the bytes are text; None where they are a protobuf message.

    Raises:
        Malformed: they are a text or a file of another kind that people have at hand.
    """
    start = data[:4096]
    if start.startswith(b"ML\xefR"):
        raise Malformed(f"this is MLIR bytecode, not HLO; {_REMEDY}")
    if start.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        raise Malformed("this is compressed; unpack it first")
    if any(byte < 9 or 13 < byte < 32 for byte in start):
        return None
    text = data.decode("utf-8", "replace")
    if "stablehlo." in text or text.lstrip().startswith(("module @", "module {", "#loc")):
        raise Malformed("this is StableHLO; HLO is what lowered.as_text(dialect='hlo') or compiled.as_text() prints")
    if text.lstrip().startswith("{ lambda"):
        raise Malformed("this is a jaxpr; HLO is what jax.jit(f).lower(...).compile().as_text() prints")
    return text if text.strip() else None
