"""The columns of partition folders, ``column=value/``: their names and types from all paths of a table."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ematix_probe.errors import SourceFailed
from ematix_probe.sources.file_paths import FoundFiles

if TYPE_CHECKING:
    import pyarrow as pa

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def partition_types(found: FoundFiles) -> dict[str, str]:
    """The partition columns in order, each with a type in plain words: bigint, date or text."""
    values: dict[str, set[str]] = {}
    names: list[str] | None = None
    start = len(found.root.rstrip("/")) + 1
    for file in found.files:
        parts = [part for part in file.path[start:].split("/")[:-1] if "=" in part]
        pairs = [
            (unquote(name), unquote(value)) for name, _, value in (part.partition("=") for part in parts)
        ]
        here = [name for name, _ in pairs]
        if names is None:
            names = here
        if here != names:
            raise SourceFailed(
                f"the files of {found.root} have different partition folders: "
                f"{'/'.join(names) or 'none'} and {'/'.join(here) or 'none'} ({file.shown})",
                next_step="name the files of one layout with a glob",
            )
        for name, value in pairs:
            values.setdefault(name, set()).add(value)
    return {name: _type_of(found_values) for name, found_values in values.items()}


def hive_partitioning(types: dict[str, str]) -> Any:
    """The same for a dataset of pyarrow."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    kinds: dict[str, pa.DataType] = {"bigint": pa.int64(), "date": pa.date32(), "text": pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in types.items()])
    return ds.HivePartitioning(schema, null_fallback=NULL_PARTITION, segment_encoding="uri")


def _type_of(values: set[str]) -> str:
    given: Sequence[str] = [value for value in values if value != NULL_PARTITION]
    if given and all(_WHOLE.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in given):
        return "bigint"
    if given and all(map(_is_date, given)):
        return "date"
    return "text"


def _is_date(value: str) -> bool:
    try:
        return _DATE.fullmatch(value) is not None and bool(dt.date.fromisoformat(value))
    except ValueError:
        return False
