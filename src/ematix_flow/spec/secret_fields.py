"""Which fields of a connection hold secrets, by their names. Texts are masked by `ematix_probe.redaction`."""

from __future__ import annotations

import re

from ematix_probe.redaction import MASK, mask

_SECRET_SEGMENTS = frozenset({"password", "passwd", "pwd", "secret", "token", "key", "credentials"})
_PUBLIC_FIELDS = frozenset(
    {"message_key_column", "partition_key_prefix", "primary_key", "key_field", "natural_key"}
)
_REFERENCE = re.compile(r"^\$\{[^}]*\}$")


def is_secret_field(name: str) -> bool:
    """Whether a field of this name holds a secret (``password``, ``sasl_password``, ``PGPASSWORD``, …)."""
    if name in _PUBLIC_FIELDS:
        return False
    parts = name.lower().split("_")
    return any(part in _SECRET_SEGMENTS or part.endswith("password") for part in parts)


def mask_field(name: str, value: object) -> object:
    """The value of a connection's field as it may be shown: ``${VAR}`` references stay readable."""
    if value is None or not isinstance(value, str) or value == "":
        return value
    if is_secret_field(name):
        return value if _REFERENCE.match(value) else MASK
    return mask(value)
