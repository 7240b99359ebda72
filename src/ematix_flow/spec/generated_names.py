"""Names that this package generates: for temporary tables and files, and for rows and helper columns in
generated SQL. A declared name can never equal a name in generated SQL."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

RESERVED_PREFIX = "_ematix_"  # only generated names begin with it; compared without case, as databases do


def internal_name(word: str) -> str:
    """The name of an alias, a helper column or a work table in generated SQL."""
    return RESERVED_PREFIX + word


def first_reserved_name(names: Iterable[str]) -> str | None:
    """The first name that begins with the reserved prefix, or None."""
    return next((name for name in names if name.lower().startswith(RESERVED_PREFIX)), None)


def distinct_name(*names: str, length: int = 24, joint: str = "_") -> str:
    """A name with a readable part from the first name, valid everywhere and unique for the names.

    No such name followed by the joint is a prefix of another one.
    """
    readable = re.sub(r"[^a-z0-9]+", joint, names[0].lower()).strip(joint)[:length].strip(joint)
    digest = hashlib.blake2b(json.dumps(names).encode("ascii"), digest_size=6).hexdigest()
    return f"{readable or 'x'}{joint}{digest}"


def distinct_file_name(*names: str, default: str, digits: int) -> str:
    """A file name: readable from the first name, valid on every file system, different for different names.

    ``default`` is used if the first name has no usable letter; ``digits`` is the length of the digest. Both
    are part of names on disk and in buckets.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", names[0]).strip("-")[:60]
    digest = hashlib.sha256(json.dumps(names).encode("ascii")).hexdigest()[:digits]
    return f"{readable or default}-{digest}"


def part_number(part: str) -> int:
    """The 64-bit number for the name of a staged part, which its rows carry."""
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "big", signed=True)
