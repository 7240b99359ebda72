"""Converts registered Protobuf files to message classes and columns, and columns to Protobuf files.

protoc compiles each schema once, in a separate process, because its text is not trusted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ematix_flow.backends.payloads.registry import LruCache, RegisteredSchema, UnusableSchema
from ematix_flow.backends.payloads.schema_names import as_schema_name, require_field_names
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

_COMPILE_SECONDS = 60
_LONGEST_NAME = 255
_CACHE_SIZE = 200
_MAIN = "ematix_flow_payload.proto"
_SLOW_SECONDS = 600  # seconds until a file that took too long is compiled again
_files: LruCache[str, ProtoFile] = LruCache(_CACHE_SIZE)
_failures: LruCache[str, tuple[str, float]] = LruCache(_CACHE_SIZE)  # the reason, and how long it holds

# field types of descriptor.proto
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = 1, 2, 3, 4, 5, 6, 7, 8, 9
_GROUP, _MESSAGE, _BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = range(10, 19)
_TYPES: dict[int, DataType] = {
    **dict.fromkeys((_INT32, _SINT32, _SFIXED32), DataType("integer")),
    **dict.fromkeys((_INT64, _SINT64, _SFIXED64, _UINT32, _FIXED32), DataType("big_int")),
    **dict.fromkeys((_UINT64, _FIXED64), DataType("numeric", precision=20, scale=0)),
    _DOUBLE: DataType("double"),
    _FLOAT: DataType("float"),
    _BOOL: DataType("boolean"),
    _STRING: DataType("text"),
    _ENUM: DataType("text"),
    _BYTES: DataType("bytes"),
}
_KNOWN_MESSAGES: dict[str, DataType] = {
    "google.protobuf.Timestamp": DataType("timestamp_tz"),
    "google.protobuf.Duration": DataType("text"),
    "google.protobuf.FieldMask": DataType("text"),
    "google.protobuf.DoubleValue": DataType("double"),
    "google.protobuf.FloatValue": DataType("float"),
    "google.protobuf.Int64Value": DataType("big_int"),
    "google.protobuf.UInt64Value": DataType("numeric", precision=20, scale=0),
    "google.protobuf.Int32Value": DataType("integer"),
    "google.protobuf.UInt32Value": DataType("big_int"),
    "google.protobuf.BoolValue": DataType("boolean"),
    "google.protobuf.StringValue": DataType("text"),
    "google.protobuf.BytesValue": DataType("bytes"),
}
WRAPPERS = frozenset(name for name in _KNOWN_MESSAGES if name.endswith("Value"))
_WRITTEN = {
    "small_int": "int32",
    "integer": "int32",
    "big_int": "int64",
    "float": "float",
    "double": "double",
    "boolean": "bool",
    "bytes": "bytes",
    "timestamp_tz": "google.protobuf.Timestamp",
}


class _CompileTimeout(UnusableSchema):
    """The compiler took too long, perhaps because the machine was busy."""


@dataclass(frozen=True)
class ProtoFile:
    """A compiled file: its descriptor, and the serialized set from which a worker restores it."""

    descriptor: Any
    serialized: bytes

    def messages(self) -> list[Any]:
        """All messages of the file, nested ones too, sorted by full name (Glue's order)."""
        return sorted(_all_messages(self.top_level_messages()), key=lambda message: message.full_name)

    def top_level_messages(self) -> list[Any]:
        """The top-level messages, in the order of the file."""
        return list(self.descriptor.message_types_by_name.values())

    def message_at(self, path: Sequence[int]) -> Any | None:
        """The message at a path of Confluent's indexes."""
        among, found = self.top_level_messages(), None
        for index in path:
            if not 0 <= index < len(among):
                return None
            found = among[index]
            among = list(found.nested_types)
        return found

    def find_message(self, name: str) -> Any:
        """The message with this full or short name, or else the first; raises UnusableSchema."""
        top = self.top_level_messages()
        if not name:
            if not top:
                raise UnusableSchema("the schema has no message")
            return top[0]
        for message in self.messages():
            if name in (message.full_name, message.name):
                return message
        known = ", ".join(message.full_name for message in self.messages()[:10])
        raise UnusableSchema(f"the schema has no message {name!r}; it has {known}")


def path_to_message(message: Any) -> tuple[int, ...]:
    """Confluent's indexes of a message."""
    outer = message.containing_type
    among = outer.nested_types if outer is not None else message.file.message_types_by_name.values()
    index = [each.full_name for each in among].index(message.full_name)
    return (*(path_to_message(outer) if outer is not None else ()), index)


def message_class(message: Any) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(message)


def compile_schema(schema: RegisteredSchema) -> ProtoFile:
    """The compiled file of a schema, cached in this process; raises UnusableSchema."""
    if schema.flaw:
        raise UnusableSchema(schema.flaw)
    key = hashlib.sha256(repr((schema.text, schema.references)).encode()).hexdigest()
    known = _files.get(key)
    if known is not None:
        return known
    failed = _failures.get(key)
    if failed is not None and time.monotonic() < failed[1]:
        raise UnusableSchema(failed[0])
    try:
        return _files.put(key, _compile(schema))
    except UnusableSchema as error:
        slow = isinstance(error, _CompileTimeout)
        _failures.put(key, (str(error), time.monotonic() + _SLOW_SECONDS if slow else math.inf))
        raise


def load_file(serialized: bytes) -> ProtoFile:
    """The file of a serialized set, cached in this process."""
    key = hashlib.sha256(serialized).hexdigest()
    known = _files.get(key)
    return known if known is not None else _files.put(key, _load(serialized))


def _compile(schema: RegisteredSchema) -> ProtoFile:
    ready = _parse_serialized(schema.text)
    if ready is not None:
        imported: dict[str, Any] = {}
        _collect_imports(ready, schema, imported)
        return _load(_as_set([*imported.values(), ready]))
    import grpc_tools

    with tempfile.TemporaryDirectory(prefix="ematix-flow-proto-") as folder_name:
        folder = Path(folder_name)
        _write_sources(folder, _MAIN, schema)
        output = folder / "out.bin"
        included = Path(grpc_tools.__file__).parent / "_proto"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
        command += [f"--proto_path={included}", "--include_imports", f"--descriptor_set_out={output}", _MAIN]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_COMPILE_SECONDS,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise _CompileTimeout(f"schema id {schema.id} took too long to compile") from None
        if done.returncode or not output.is_file():
            words = " ".join(done.stderr.replace(_MAIN, "schema").split())[-300:]
            raise UnusableSchema(f"schema id {schema.id} is not a usable Protobuf file: {words}")
        return _load(output.read_bytes())


def _write_sources(folder: Path, name: str, schema: RegisteredSchema) -> None:
    """Write the schema and its imports as files below the folder, and nowhere else."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\x00" in name or "\\" in name or not place.parts:
        raise UnusableSchema(f"schema id {schema.id} imports {name!r}, which is not a file name")
    path = folder / place
    if any(len(part.encode("utf-8", "replace")) > _LONGEST_NAME for part in place.parts):
        raise UnusableSchema(f"schema id {schema.id} imports {name[:50]!r}…, which is not a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(schema.text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError, IsADirectoryError, UnicodeEncodeError) as error:
        raise UnusableSchema(f"schema id {schema.id} cannot be written as files: {error}") from None
    for reference in schema.references:
        _write_sources(folder, reference.name, reference.schema)


def _parse_serialized(text: str) -> Any | None:
    """The file, if it was registered in serialized form (base64), as Confluent's Python library does."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    if "{" in text or ";" in text:
        return None
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file if file.name else None


def _collect_imports(file: Any, schema: RegisteredSchema, imported: dict[str, Any]) -> None:
    """Put the imports of a serialized file into ``imported``, each before the files that need it."""
    from google.protobuf import descriptor_pb2

    references = {reference.name: reference.schema for reference in schema.references}
    for name in file.dependency:
        if name in imported:
            continue
        if name in references:
            *others, found = descriptor_pb2.FileDescriptorSet.FromString(
                compile_schema(references[name]).serialized
            ).file
            for other in others:
                imported.setdefault(other.name, other)
            found.name = name
        else:
            found = _find_well_known(name, schema)
            _collect_imports(found, schema, imported)
        imported[name] = found


def _find_well_known(name: str, schema: RegisteredSchema) -> Any:
    from google.protobuf import descriptor_pb2

    known = re.fullmatch(r"google/protobuf/([a-z_]+)\.proto", name)
    try:
        if known is None:
            raise ImportError
        module = importlib.import_module(f"google.protobuf.{known[1]}_pb2")
    except ImportError:
        raise UnusableSchema(
            f"schema id {schema.id} imports {name!r}, which the registry does not have"
        ) from None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _as_set(files: Sequence[Any]) -> bytes:
    from google.protobuf import descriptor_pb2

    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


def _load(serialized: bytes) -> ProtoFile:
    """Load a file into its own pool, so that two schemas may use the same names."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
    try:
        for file in files:
            pool.Add(file)
        return ProtoFile(pool.FindFileByName(files[-1].name), serialized)
    except (TypeError, KeyError, IndexError) as error:
        raise UnusableSchema(f"the Protobuf schema cannot be used: {error}") from None


def _all_messages(messages: Sequence[Any]) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from _all_messages(message.nested_types)


# ------------------------------------------------------------------ columns


def columns_of(message: Any) -> tuple[ColumnSpec, ...]:
    """A column for each field, all nullable: an older writer may lack the field."""
    fields = sorted(message.fields, key=lambda field: field.index)
    return tuple(ColumnSpec(field.name, _column_type(field), nullable=True) for field in fields)


def _column_type(field: Any) -> DataType:
    if field.is_repeated:
        return DataType("json")
    if field.type in (_MESSAGE, _GROUP):
        return _KNOWN_MESSAGES.get(field.message_type.full_name, DataType("json"))
    return _TYPES.get(field.type, DataType("json"))


def proto_text(columns: Sequence[ColumnSpec], name: str, numbers: Mapping[str, int]) -> str:
    """The Protobuf file for these columns; ``numbers`` are existing field numbers to keep.

    SchemaMismatch for a name that Protobuf does not allow.
    """
    require_field_names(columns, "Protobuf")
    package, _, short = name.rpartition(".")
    lines = ['syntax = "proto3";']
    if package:
        lines.append(f"package {'.'.join(map(as_schema_name, package.split('.')))};")
    if any(column.type.kind == "timestamp_tz" for column in columns):
        lines.append('import "google/protobuf/timestamp.proto";')
    lines.append(f"message {as_schema_name(short)} {{")
    free = max(numbers.values(), default=0) + 1
    for column in columns:
        number = numbers.get(column.name)
        if number is None:
            number, free = free, free + 1 if free != 18_999 else 20_000  # Protobuf reserves those between
        lines.append(f"  optional {_WRITTEN.get(column.type.kind, 'string')} {column.name} = {number};")
    return "\n".join([*lines, "}", ""])
