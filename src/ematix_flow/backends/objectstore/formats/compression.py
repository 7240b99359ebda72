"""Compressed text files: finds the codec by name and first bytes, and opens the text."""

from __future__ import annotations

import io
from typing import BinaryIO

from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.errors import SourceFailed

# suffix -> Arrow's name of the codec. Spark reads the last two only in Hadoop's own format.
_PACKINGS = {
    ".gz": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".lz4": "lz4",
    ".snappy": "snappy",
}
_HADOOPS = ("lz4", "snappy")

_BEGINNINGS = (
    (b"\x1f\x8b", "gzip"),
    *((b"BZh%d1AY&SY" % level, "bz2") for level in range(1, 10)),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "an lz4 frame"),
    (b"\xff\x06\x00\x00sNaPpY", "a snappy frame"),
    (b"PK\x03\x04", "zip"),
    (b"\xfd7zXZ", "xz"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_TABLES = ((b"PAR1", "Parquet"), (b"ORC", "ORC"))


def codec_of(name: str) -> str | None:
    """The codec that a file's extension names; None for plain text."""
    return next((codec for suffix, codec in _PACKINGS.items() if name.lower().endswith(suffix)), None)


def require_text(file: SourceFile) -> None:
    """Refuse a file whose first bytes do not match the codec that its name says."""
    named = codec_of(file.name)
    with file.open() as stream:
        beginning = stream.read(16)
    found = next((what for sign, what in _BEGINNINGS if beginning.startswith(sign)), None)
    if found is None and any(byte < 9 or 13 < byte < 32 for byte in beginning):  # a header may be ORC,PAR1
        found = next((what for sign, what in _TABLES if beginning.startswith(sign)), None)
    if not beginning or found == named or (found is None and named in _HADOOPS):
        return
    step = "compress it with gzip, bz2 or zstd, or not at all"
    if found == "UTF-16 text":
        step = f"convert it, as in  iconv -f UTF-16 -t UTF-8 '{file.display_name}'"
    elif found in _PACKINGS.values():
        suffix = next(suffix for suffix, codec in _PACKINGS.items() if codec == found)
        step = f"give it a name that ends in {suffix}"
    elif found in ("Parquet", "ORC"):
        step = f"read it through a connection with format={found.lower()!r}"
    what = f"it begins like {found}" if found else "its first bytes do not match"
    reason = f"its name says {named}, and {what}" if named else what
    raise SourceFailed(f"cannot read {file.display_name}: {reason}", next_step=step)


def is_hadoop_codec(file: SourceFile) -> bool:
    """Whether only Spark can decompress the file."""
    return codec_of(file.name) in _HADOOPS


def open_decompressed(file: SourceFile) -> BinaryIO:
    """Open the file and decompress it."""
    import pyarrow as pa

    codec = codec_of(file.name)
    stream = file.open()
    if codec is None:
        return io.BufferedReader(stream) if isinstance(stream, io.RawIOBase) else stream
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream), codec))
