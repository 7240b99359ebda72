"""The check for texts that PostgreSQL cannot store, before they are staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = ("text", "string", "json", "jsonb")
_ESCAPED_ZERO = r"(^|[^\\])(\\\\)*\\u0000"  # after an even number of backslashes


@dataclass(frozen=True)
class ZeroCharacterCheck:
    """Refuses the character zero in a text and in a string of a ``jsonb``. Picklable."""

    texts: tuple[str, ...]
    jsonb: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        for name in self.texts:
            array = batch.column(name)
            _refuse(name, array, pc.match_substring(array, "\0"), "contains the character zero")
        for name in self.jsonb:
            array = batch.column(name)
            if pc.any(pc.match_substring(array, "\\u0000")).as_py():
                zero = pc.match_substring_regex(array, _ESCAPED_ZERO)
                _refuse(name, array, zero, "contains the character zero in a string")


def zero_character_check(table: TableSpec) -> ZeroCharacterCheck | None:
    texts = tuple(c.name for c in table.columns if c.type.kind in _TEXTS)
    jsonb = tuple(c.name for c in table.columns if c.type.kind == "jsonb")
    return ZeroCharacterCheck(texts, jsonb) if texts else None


def _refuse(name: str, array: pa.Array, wrong: pa.Array, why: str) -> None:
    import pyarrow.compute as pc

    if pc.any(wrong).as_py():
        index = pc.index(wrong, True).as_py()
        raise row_rejection(name, index, array[index].as_py(), f"{why}, which PostgreSQL does not accept")
