"""Spark SQL's spelling of what normalisers need. The session's zone is UTC and ANSI mode is on."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.portable_regex import replacement_parts, translate, write_replacement
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.base import UTC, WHITESPACE, SqlFunctions, call, text

_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INT",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "STRING",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamp_tz": "TIMESTAMP",
    "json": "STRING",
    "jsonb": "STRING",
    "uuid": "STRING",
    "bytes": "BINARY",
}
_NAIVE, _MOMENT = DataType("timestamp"), DataType("timestamp_tz")


class SparkFunctions(SqlFunctions):
    name = "spark"
    flavour = "java"
    folds_case = True

    def type_name(self, data_type: DataType) -> str:
        if data_type.kind == "numeric":
            return f"DECIMAL({data_type.precision},{data_type.scale})"
        return _TYPES[data_type.kind]

    def trim(self, tree: exp.Expression) -> exp.Expression:
        return call("BTRIM", tree, text(WHITESPACE))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("REGEXP_LIKE", tree, text(translate(pattern, self.flavour)))

    def regex_replace(
        self,
        tree: exp.Expression,
        pattern: str,
        replacement: str,
        *,
        everywhere: bool = True,
        ignore_case: bool = False,
    ) -> exp.Expression:
        flag = "(?i)" if ignore_case else ""
        written = translate(pattern, self.flavour)
        parts = replacement_parts(replacement)
        if everywhere:
            return call(
                "REGEXP_REPLACE", tree, text(flag + written), text(write_replacement(parts, self.flavour))
            )
        # Spark replaces every match; the pattern includes the text before the first match to leave only one
        before_first = f"{flag}\\A([\\s\\S]*?)({written})"
        return call(
            "REGEXP_REPLACE",
            tree,
            text(before_first),
            text("$1" + write_replacement(parts, self.flavour, shift=2)),
        )

    def rewrite(self, tree: exp.Expression, pattern: str, replacement: str) -> exp.Expression:
        return self.regex_replace(tree, pattern, replacement)

    def to_utc(self, tree: exp.Expression) -> exp.Expression:
        return self.cast(tree, _MOMENT)

    def local(self, tree: exp.Expression, zone: str) -> exp.Expression:
        naive = self.cast(tree, _NAIVE)
        return naive if zone == UTC else call("CONVERT_TIMEZONE", text(UTC), text(zone), naive)

    def start_of(self, unit: str, tree: exp.Expression) -> exp.Expression:
        return self.cast(call("DATE_TRUNC", text(unit), tree), _NAIVE)

    def decimal_of(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        return self.cast(tree, data_type)

    def random(self) -> exp.Expression:
        return call("RAND")

    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        return call("RAISE_ERROR", message)
