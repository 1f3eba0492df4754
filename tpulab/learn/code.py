"""Short texts that carry a small record from one machine to another."""

import base64
import binascii
import json
import re
import zlib
from typing import Any

_PREFIX = "TPULAB1"


def encode(kind: str, record: Any) -> str:
    """Pack a record into one line of letters and digits.

    The record is what goes in and nothing else: no name, no path, no address, no time.

    Args:
        kind: what the record is, "progress" or "doctor".
        record: anything that JSON can write.

    Example:
        >>> decode(encode("progress", {"jit.1": 1}))
        ('progress', {'jit.1': 1})
    """
    packed = zlib.compress(json.dumps([kind, record], separators=(",", ":"), sort_keys=True).encode(), 9)
    body = packed + zlib.crc32(packed).to_bytes(4, "big")
    return f"{_PREFIX}-{base64.urlsafe_b64encode(body).decode().rstrip('=')}"


def decode(text: str) -> tuple[str, Any]:
    """Unpack what `encode` gave; white space from copying is ignored.

    Raises:
        ValueError: the text is no such code or was not copied whole.
    """
    text = "".join(text.split())
    if re.match(r"TPULAB([2-9]|\d\d+)-", text):
        raise ValueError("the code is from a newer tpulab; update tpulab")
    if not text.startswith(_PREFIX + "-"):
        raise ValueError(f"a code starts with {_PREFIX}-; got {text[:12]!r}")
    body = text[len(_PREFIX) + 1 :]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        packed, check = raw[:-4], raw[-4:]
        if zlib.crc32(packed).to_bytes(4, "big") != check:
            raise ValueError
        decompressor = zlib.decompressobj()
        plain = decompressor.decompress(packed, 1_000_000)  # a bound, whatever was pasted
        kind, record = json.loads(plain)
    except (ValueError, TypeError, RecursionError, binascii.Error, zlib.error):
        raise ValueError("the code was not copied whole; copy it again from its first letter to its last") from None
    return kind, record
