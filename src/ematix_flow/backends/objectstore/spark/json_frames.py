"""JSON lines of other programs as a DataFrame: columns and types inferred from all lines.

A number with a fraction is a double, as usual in JSON, unless whole numbers in the same column would lose
digits: then it is a decimal, or text. A number beyond the range of doubles makes its column text. A column
that is a number in one line and a text or an object in another is text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.objectstore.formats import text_types
from ematix_flow.backends.objectstore.formats.compression import is_hadoop_codec, require_text
from ematix_flow.backends.objectstore.formats.csv_headers import is_utf8, not_utf8_error
from ematix_flow.backends.objectstore.formats.json_lines import (
    EMPTY_KEY,
    HALF_PAIR,
    LONG_NUMBER,
    NO_END,
    NO_OBJECT,
    ONE_A_LINE,
    SECOND_VALUE,
    TextFacts,
    all_keys,
    case_conflict_error,
    empty_key_error,
    find_bad_line,
    parse_line,
    scan_text,
)
from ematix_flow.backends.objectstore.formats.stored_types import to_ddl
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.objectstore.spark.file_readers import (
    FILE_COLUMN,
    SAMPLED_FILES,
    load_files,
    load_files_only,
    partition_types,
    union_frames,
)
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import FILE_PATH_SQL, text_literal
from ematix_flow.backends.spark_sql.session_settings import session_settings
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.file_options import JsonReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

_REMEMBERED = 256
_CASE = "spark.sql.caseSensitive"
_LOOKED_AT_BY_DRIVER = 16 * 1024 * 1024  # bytes of text; Spark scans more

Path = tuple[str | None, ...]

_known_columns: OrderedDict[object, dict[str, str]] = OrderedDict()  # a query is planned and run: infer once


def json_frame(
    spark: SparkSession, table: ReadableTable, reading: JsonReadOptions, texts: Collection[str] = ()
) -> DataFrame:
    """``texts``: partition columns that stay text."""
    partitions, found = partition_types(table, texts), _column_types(spark, table, reading)
    if not found:
        raise SourceFailed(
            f"the files of {table.name!r} in {table.folder} are empty: no line holds a column",
            next_step="run the pipeline that fills them first",
        )
    return _read_columns(spark, table, found, partitions)


def json_texts(
    spark: SparkSession, table: ReadableTable, reading: JsonReadOptions, names: Collection[str]
) -> DataFrame | None:
    """The existing columns of ``names`` and the partitions, as written text, and `FILE_COLUMN`; None if no
    line has a column."""
    found = _column_types(spark, table, reading)
    if not found:
        return None
    wanted = {name.lower() for name in names}
    partitions = dict.fromkeys(partition_types(table), "STRING")
    texts = {name: "STRING" for name in found if name.lower() in wanted}
    frame = _read_columns(spark, table, texts, partitions)
    return frame.selectExpr(*map(quote_name, frame.columns), f"{FILE_PATH_SQL} AS {quote_name(FILE_COLUMN)}")


def _read_columns(
    spark: SparkSession, table: ReadableTable, columns: Mapping[str, str], partitions: Mapping[str, str]
) -> DataFrame:
    fields = [f"{quote_name(name)} {kind}" for name, kind in columns.items()]
    reader = spark.read.format("json").option("mode", "FAILFAST")
    return load_files(spark, reader, table, table.files, fields, partitions)


def _column_types(spark: SparkSession, table: ReadableTable, reading: JsonReadOptions) -> dict[str, str]:
    key = (table.fingerprint, reading.schema_infer_max_records)
    if key not in _known_columns:
        _known_columns[key] = _infer_columns(spark, table, reading.schema_infer_max_records)
        while len(_known_columns) > _REMEMBERED:
            _known_columns.popitem(last=False)
    return _known_columns[key]


def _infer_columns(spark: SparkSession, table: ReadableTable, limit: int | None) -> dict[str, str]:
    """Infer the columns and their Spark types; SourceFailed for lines that are not objects."""
    for file in table.files:
        require_text(file)
    facts = _scan_texts(spark, table.files)
    if facts.may_be_misread:
        problem = find_bad_line(table.files)
        if problem is not None:
            raise problem
    found = (
        _fields_of_all_lines(spark, table) if limit is None else _fields_of_first_lines(spark, table, limit)
    )
    hidden = {name.lower() for name in partition_types(table)}
    columns = [field for field in found if field.name.lower() not in hidden]
    _require_names(columns, table)
    types = {field.name: field.dataType for field in columns}
    exact = _exact_types(spark, table, types) if facts.long_numbers else {}
    return {name: exact.get(name) or _spark_ddl(kind) for name, kind in types.items()}


def _scan_texts(spark: SparkSession, files: Sequence[SourceFile]) -> TextFacts:
    if sum(file.size for file in files) <= _LOOKED_AT_BY_DRIVER and not any(map(is_hadoop_codec, files)):
        found = [scan_text(file) for file in files]
        return TextFacts(any(f.may_be_misread for f in found), any(f.long_numbers for f in found))
    lines = load_files_only(spark, spark.read.format("text"), files)
    half = f"contains(value, {text_literal(chr(92) + 'u')}) AND value RLIKE {text_literal(HALF_PAIR)}"
    odd = " OR ".join(f"value RLIKE {text_literal(pattern)}" for pattern in (EMPTY_KEY, NO_OBJECT))
    misread = f"({half}) OR {odd} OR {_has_more_values_sql()}"
    facts = (misread, f"value RLIKE {text_literal(LONG_NUMBER)}", "contains(value, '\ufffd')")
    row = lines.selectExpr(*(f"coalesce(bool_or({fact}), false)" for fact in facts)).collect()[0]
    if row[2]:  # a valid file may contain it
        for file in files:
            if not is_hadoop_codec(file) and not is_utf8(file):
                raise not_utf8_error(file)
    return TextFacts(bool(row[0]), bool(row[1]))


def _has_more_values_sql() -> str:
    """SQL: whether the text in ``value`` holds more than one JSON value, or anything else after the first.

    Spark itself reads only the first value. In brackets, all of them must make a list of one value.
    """
    uneven = [
        f"length(replace(value, '{opening}', '')) <> length(replace(value, '{closing}', ''))"
        for opening, closing in ("{}", "[]")
    ]
    patterns = [f"value RLIKE {text_literal(pattern)}" for pattern in (SECOND_VALUE, NO_END)]
    suspect = " OR ".join([*uneven, *patterns])
    listed = "from_json(concat('[', ltrim('\ufeff', value), ']'), 'array<string>')"
    return f"CASE WHEN {suspect} THEN coalesce(size({listed}), 0) <> 1 ELSE false END"


def _require_names(fields: Sequence[StructField], table: ReadableTable) -> None:
    """Refuse names that a query cannot tell apart, at any depth."""
    names: dict[str, str] = {}
    for field in fields:
        twin = names.setdefault(field.name.lower(), field.name)
        if twin != field.name:
            raise find_bad_line(table.files) or case_conflict_error(twin, field.name, table.name, table.files)
        if not field.name:
            raise find_bad_line(table.files) or empty_key_error(f"a line of {table.name!r} in {table.folder}")
        _require_names(_fields_of(field.dataType), table)


def _fields_of(of: DataType) -> Sequence[StructField]:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(of, ArrayType):
        return _fields_of(of.elementType)
    return of.fields if isinstance(of, StructType) else ()


def _fields_of_all_lines(spark: SparkSession, table: ReadableTable) -> Sequence[StructField]:
    reader = spark.read.format("json").option("mode", "FAILFAST")
    try:
        with session_settings(spark, {_CASE: "true"}):
            return load_files_only(spark, reader, table.files).schema.fields
    except Exception as error:  # in which Spark names no file
        raise find_bad_line(table.files) or SourceFailed(
            f"the files of {table.name!r} in {table.folder} cannot be read as JSON lines: "
            + str(error).splitlines()[0],
            next_step=ONE_A_LINE,
        ) from error


def _spark_ddl(of: DataType) -> str:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(of, StructType):
        return "STRUCT<" + ", ".join(f"{quote_name(f.name)}: {_spark_ddl(f.dataType)}" for f in of) + ">"
    if isinstance(of, ArrayType):
        return f"ARRAY<{_spark_ddl(of.elementType)}>"
    return of.simpleString()


# ------------------------------------------------------------------ whole numbers among fractions


def _exact_types(spark: SparkSession, table: ReadableTable, types: Mapping[str, DataType]) -> dict[str, str]:
    """Types of columns in which a double would lose digits of a whole number: a decimal if all values fit
    one, else text; inside structs and lists always text."""
    asked: list[tuple[str, Path]] = [(name, path) for name in types for path in _double_paths(types[name])]
    if not asked:
        return {}
    texts = {name: _ddl_with_text(kind, list(_double_paths(kind))) for name, kind in types.items()}
    fields = ", ".join(f"{quote_name(name)} {texts[name]}" for name in dict(asked))
    reader = spark.read.format("json").option("mode", "FAILFAST").schema(fields)
    lines = load_files_only(spark, reader, table.files)
    lossy = [f"coalesce(bool_or({_is_lossy_sql(quote_name(name), path)}), false)" for name, path in asked]
    row = lines.selectExpr(*lossy).collect()[0]
    found: dict[str, list[Path]] = {}
    for (name, path), is_lossy in zip(asked, row, strict=True):
        if is_lossy:
            found.setdefault(name, []).append(path)
    whole = [name for name, paths in found.items() if () in paths]
    exact = text_types.infer_types(lines, whole).types if whole else {}
    return {**{name: _ddl_with_text(types[name], paths) for name, paths in found.items()}, **exact}


def _double_paths(of: DataType, path: Path = ()) -> Iterator[Path]:
    """The paths to all doubles in a type; None means the elements of a list."""
    from pyspark.sql.types import ArrayType, DoubleType, StructType

    if isinstance(of, StructType):
        for field in of.fields:
            yield from _double_paths(field.dataType, (*path, field.name))
    elif isinstance(of, ArrayType):
        yield from _double_paths(of.elementType, (*path, None))
    elif isinstance(of, DoubleType):
        yield path


def _ddl_with_text(of: DataType, paths: Sequence[Path]) -> str:
    """The type in Spark's DDL, with text at the end of the paths."""
    from pyspark.sql.types import ArrayType, StructType

    if () in paths:
        return "STRING"
    below = [path for path in paths if path]
    if isinstance(of, StructType) and below:
        inside = (
            f"{quote_name(f.name)}: {_ddl_with_text(f.dataType, [p[1:] for p in below if p[0] == f.name])}"
            for f in of
        )
        return f"STRUCT<{', '.join(inside)}>"
    if isinstance(of, ArrayType) and below:
        return f"ARRAY<{_ddl_with_text(of.elementType, [path[1:] for path in below])}>"
    return _spark_ddl(of)


def _is_lossy_sql(value: str, path: Path, depth: int = 0) -> str:
    """SQL: whether the text at the end of the path is a number that a double cannot represent."""
    if not path:
        return (
            f"({text_types.is_lossy_whole_sql(value, 'DOUBLE')} OR {text_types.is_beyond_double_sql(value)})"
        )
    if path[0] is None:
        inner = f"v{depth}"
        return f"exists({value}, {inner} -> coalesce({_is_lossy_sql(inner, path[1:], depth + 1)}, false))"
    return _is_lossy_sql(f"{value}.{quote_name(path[0])}", path[1:], depth)


# ------------------------------------------------------------------ from the first lines alone


def _fields_of_first_lines(spark: SparkSession, table: ReadableTable, limit: int) -> Sequence[StructField]:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    some = table.files[:SAMPLED_FILES]
    lines = union_frames([load_files_only(spark, spark.read.format("text"), [file]) for file in some])
    found = pa.struct([])
    for row in lines.limit(limit).collect():
        try:
            value = parse_line(row.value.removeprefix("\ufeff"))
        except ValueError as error:
            raise find_bad_line(table.files) or SourceFailed(
                f"a line of {table.name!r} in {table.folder} is not JSON: {error}", next_step=ONE_A_LINE
            ) from error
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                raise find_bad_line(table.files) or SourceFailed(
                    f"a line of {table.name!r} in {table.folder} is not a JSON object", next_step=ONE_A_LINE
                )
            if "" in all_keys(one):
                raise find_bad_line(table.files) or empty_key_error(
                    f"a line of {table.name!r} in {table.folder}"
                )
            found = _common_type(found, _type_of_value(one))
    fields = StructType.fromDDL(", ".join(f"{quote_name(f.name)} {to_ddl(f.type)}" for f in found))
    assert isinstance(fields, StructType)
    return fields.fields


def _type_of_value(value: Any) -> pa.DataType:
    import pyarrow as pa

    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        digits = len(str(abs(value)))
        return pa.int64() if -(2**63) <= value < 2**63 else pa.decimal128(min(digits, 38), 0)
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, dict):
        return pa.struct([(name, _type_of_value(one)) for name, one in value.items()])
    if isinstance(value, list):
        return pa.list_(reduce(_common_type, map(_type_of_value, value), pa.null()))
    return pa.string()


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The common type of two values of a column."""
    import pyarrow as pa
    import pyarrow.types as t

    if one == other or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if t.is_struct(one) and t.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _common_type(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if t.is_list(one) and t.is_list(other):
        return pa.list_(_common_type(one.value_type, other.value_type))
    if t.is_decimal(one) and t.is_decimal(other):
        return max(one, other, key=lambda kind: kind.precision)
    numbers = [t.is_integer(kind) or t.is_decimal(kind) for kind in (one, other)]
    if all(numbers):
        return one if t.is_decimal(one) else other
    if all(number or t.is_floating(kind) for number, kind in zip(numbers, (one, other), strict=True)):
        return pa.float64()
    return pa.string()
