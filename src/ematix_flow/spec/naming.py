"""Names made from names: for what we put beside the user's own tables and files for a while."""

from __future__ import annotations

import hashlib
import json
import re


def distinct_name(*names: str, length: int = 24, joint: str = "_") -> str:
    """Readable from the first name, valid everywhere, and different for different names.

    None is the beginning of another one's with a joint after it.
    """
    readable = re.sub(r"[^a-z0-9]+", joint, names[0].lower()).strip(joint)[:length].strip(joint)
    digest = hashlib.blake2b(json.dumps(names).encode("ascii"), digest_size=6).hexdigest()
    return f"{readable or 'x'}{joint}{digest}"


def part_number(part: str) -> int:
    """The name of a staged part as the 64-bit number that its rows carry."""
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "big", signed=True)
