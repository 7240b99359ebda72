"""File formats of object stores, and the format of a path by its extension."""

from __future__ import annotations

from urllib.parse import urlsplit

FORMATS = ("parquet", "csv", "json_lines", "orc")
FORMAT_ALIASES = {
    "json-lines": "json_lines",
    "jsonl": "json_lines",
    "ndjson": "json_lines",
    "json": "json_lines",
}

_COMPRESSION = (".gz", ".bz2", ".zst", ".zstd", ".lz4", ".snappy")
_EXTENSIONS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json_lines",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".orc": "orc",
}


def format_from_path(path: object) -> str | None:
    """``parquet``, ``csv``, ``json_lines`` or ``orc`` by the file's extension, else None.

    One compression suffix and the query of a URL are ignored: ``s3://b/events.csv.gz?versionId=3``
    is ``csv``.
    """
    text = str(path)
    if "://" in text:
        text = urlsplit(text).path
    name = text.lower().replace("\\", "/").rpartition("/")[2]
    for suffix in _COMPRESSION:
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    _, dot, extension = name.rpartition(".")
    return _EXTENSIONS.get(dot + extension)
