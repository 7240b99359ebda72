"""Finds ``${…}`` references in the fields of a connection, and shows text without its secrets.

Pure text work. Reading the variables and the secret stores behind references is `config.interpolate`'s.
"""

from __future__ import annotations

import re

from ematix_flow.spec.secret_fields import is_secret_field
from ematix_probe.redaction import MASK

REFERENCE = re.compile(r"\$\{([^}]*)\}")
_ONLY_REFERENCES = re.compile(r"(?:\$\{[^}]*\})+")
_WITH_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):-(.*)", re.DOTALL)

# names that sound secret but hold the path of a secret
_PATH_FIELDS = frozenset({"ssl_key", "sslkey"})
_SECRET_FIELDS = frozenset({"credential", "sslpassword", "sasl_jaas_config", "jaas"})


class ExpandedText(str):
    """Text whose references were replaced: a remaining ``${`` is part of a secret and not a reference."""

    __slots__ = ()


def has_reference(value: object) -> bool:
    """Whether a value contains a ``${…}`` that must be replaced before use."""
    return isinstance(value, str) and not isinstance(value, ExpandedText) and bool(REFERENCE.search(value))


def split_default(reference: str) -> tuple[str, str | None]:
    """Split the inside of ``${NAME:-default}`` into name and default; ``vault:a#b`` has no default."""
    match = _WITH_DEFAULT.fullmatch(reference)
    return (match[1], match[2]) if match else (reference, None)


def holds_secret(name: str) -> bool:
    """Whether a field or property of this name is a secret; ``tls_key_path`` and the like are only paths."""
    plain = name.lower().replace(".", "_").replace("-", "_")
    if plain in _PATH_FIELDS or plain.endswith(("_path", "_file", "_location")):
        return False
    return plain in _SECRET_FIELDS or is_secret_field(plain)


def mask_secret(value: str) -> str:
    """A secret as it may be shown: ``***``, or its references, without their default values."""
    if value == "":
        return value
    if isinstance(value, ExpandedText) or not _ONLY_REFERENCES.fullmatch(value):
        return MASK
    return REFERENCE.sub(_mask_reference, value)


def _mask_reference(match: re.Match[str]) -> str:
    name, default = split_default(match[1])
    return match[0] if not default else f"${{{name}:-{MASK}}}"
