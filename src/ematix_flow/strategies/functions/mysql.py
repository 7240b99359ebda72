"""MySQL's and MariaDB's spelling of what normalisers need; one text that both read.

Where the two differ, a comment that only one of them executes makes the choice. Times with and without
zone are both ``DATETIME(6)`` in UTC. Casts that would clamp, round or give NULL with a mere warning are
guarded: what does not fit is refused.
"""

from __future__ import annotations

import datetime as dt

from sqlglot import exp

from ematix_flow.spec.portable_regex import (
    check_pattern,
    matches_empty_text,
    replacement_parts,
    translate,
    write_replacement,
)
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.functions.base import (
    UTC,
    WHITESPACE,
    SqlFunctions,
    call,
    case,
    concat,
    number,
    text,
)
from ematix_flow.strategies.functions.zone_offsets import EPOCH, LAST_YEAR, utc_offsets

_TYPES = {
    "small_int": "SIGNED",
    "integer": "SIGNED",
    "big_int": "SIGNED",
    "boolean": "SIGNED",
    "text": "CHAR",
    "string": "CHAR",
    "date": "DATE",
    "timestamp": "DATETIME(6)",
    "timestamp_tz": "DATETIME(6)",
    "json": "CHAR",
    "jsonb": "CHAR",
    "uuid": "CHAR",
    "bytes": "BINARY",
}
_TEXTS = ("text", "string", "json", "jsonb", "uuid")
_REALS = ("float", "double")
_COLLATION = "/*!80000 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */"
_EVERYTHING = "18446744073709551615"
_UUID = "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_ZONE = "[+-][0-9]{2}:[0-9]{2}$"
_SHOWN = 40
_PADDING = 200  # a lock's name of this many bytes is refused, and the error shows the name
_FORMATS = {"second": "%Y-%m-%d %H:%i:%s", "minute": "%Y-%m-%d %H:%i:00", "hour": "%Y-%m-%d %H:00:00"}
_FORMATS |= {"day": "%Y-%m-%d", "month": "%Y-%m-01", "year": "%Y-01-01"}


class MySQLFunctions(SqlFunctions):
    name = "mysql"
    flavour = "mysql"
    folds_case = True

    def fence(self, select: exp.Select) -> exp.Select:
        return select.limit(exp.Literal.number(_EVERYTHING))

    def from_source(self, tree: exp.Expression, data_type: DataType | None) -> exp.Expression:
        """Text compares by code point, not by the collation of its column."""
        if data_type is None or data_type.kind not in ("text", "string"):
            return tree
        return _exact(tree)

    # --- types ---

    def type_name(self, data_type: DataType) -> str:
        if data_type.kind == "numeric":
            return f"DECIMAL({data_type.precision}, {data_type.scale})"
        return _TYPES[data_type.kind]

    def cast(self, tree: exp.Expression, data_type: DataType, column: str = "") -> exp.Expression:
        kind = data_type.kind
        if kind in INTEGER_BITS:
            limit = 2 ** (INTEGER_BITS[kind] - 1)
            fits: exp.Expression = exp.Between(this=tree, low=number(-limit), high=number(limit - 1))
        elif kind == "numeric":
            whole = (data_type.precision or 0) - (data_type.scale or 0)
            fits = exp.LT(this=call("ABS", tree), expression=number(10**whole))
        elif kind in ("json", "jsonb"):
            fits = call("JSON_VALID", tree)
        elif kind == "uuid":
            fits = self.matches(tree, _UUID)
        else:
            return self.convert(tree, data_type)
        null = (exp.Is(this=tree.copy(), expression=exp.Null()), exp.Null())
        refusal = self.reject(column, self.to_text(tree.copy()), f"does not fit {data_type}", data_type)
        return case(null, (fits, self.convert(tree.copy(), data_type)), otherwise=refusal)

    def convert(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        if data_type.kind in _REALS:
            return exp.Paren(this=exp.Add(this=tree, expression=exp.Literal.number("0e0")))
        written = exp.Cast(this=tree, to=exp.DataType.build(self.type_name(data_type), dialect=self.name))
        return _exact(written) if data_type.kind in _TEXTS else written

    def to_text(self, tree: exp.Expression) -> exp.Expression:
        return self.convert(tree, DataType("text"))

    def literal(self, value: object) -> exp.Expression:
        if isinstance(value, str):
            return _exact(text(value))
        return super().literal(value)  # type: ignore[arg-type]  # one of the scalars that it takes

    def timestamp_constant(self, value: dt.datetime) -> exp.Expression:
        naive = value.astimezone(dt.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return self.convert(text(naive.isoformat(" ", "microseconds")), DataType("timestamp"))

    # --- text ---

    def trim(self, tree: exp.Expression) -> exp.Expression:
        return self.regex_replace(tree, f"^[{WHITESPACE}]+|[{WHITESPACE}]+$", "")

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        place = call("REGEXP_INSTR", tree, self._pattern(pattern))
        return exp.GT(this=place, expression=number(0))

    def regex_replace(
        self,
        tree: exp.Expression,
        pattern: str,
        replacement: str,
        *,
        everywhere: bool = True,
        ignore_case: bool = False,
    ) -> exp.Expression:
        parts = replacement_parts(replacement)
        written = self._pattern(pattern, ignore_case=ignore_case)
        if pattern.startswith(("^", r"\A")) and matches_empty_text(pattern):
            # both leave an empty match alone: the rest of the text is matched along, if there is any
            rest = check_pattern(pattern) + 1
            whole = self._pattern(pattern, ignore_case=ignore_case, around=r"(?:{})([\s\S]*)\z")
            literal = "".join(part for part in parts if isinstance(part, str))
            is_empty = exp.EQ(this=call("CHAR_LENGTH", tree), expression=number(0))
            replaced = call("REGEXP_REPLACE", tree.copy(), whole, _replacement((*parts, rest), 0, ""))
            return case((is_empty, text(literal)), otherwise=replaced)
        if everywhere:
            return call("REGEXP_REPLACE", tree, written, _replacement(parts, 0, ""))
        # MariaDB replaces every match; the pattern includes the text before the first match to leave only one
        before_first = self._pattern(pattern, ignore_case=ignore_case, around=r"\A([\s\S]*?)({})")
        return call("REGEXP_REPLACE", tree, before_first, _replacement(parts, 2, "1"))

    def rewrite(self, tree: exp.Expression, pattern: str, replacement: str) -> exp.Expression:
        return self.regex_replace(tree, pattern, replacement)

    def _pattern(self, pattern: str, *, ignore_case: bool = False, around: str = "{}") -> exp.Expression:
        """The pattern with its flags inside; otherwise the collation decides whether case matters."""
        written = translate(pattern, self.flavour)
        return text(("(?i)" if ignore_case else "(?-i)") + around.replace("{}", written))

    # --- dates and times ---

    def timestamp_from_iso(self, tree: exp.Expression) -> exp.Expression:
        clock = call("REGEXP_REPLACE", tree, self._pattern(_ZONE), text(""))
        zone = call("REPLACE", call("RIGHT", tree.copy(), number(6)), text("+"), text(""))
        moment = self.convert(clock, DataType("timestamp"))
        return _add_interval(moment, exp.Neg(this=call("TIME_TO_SEC", zone)), "SECOND")

    def to_utc(self, tree: exp.Expression) -> exp.Expression:
        return tree

    def local(self, tree: exp.Expression, zone: str) -> exp.Expression:
        """By a table of the zone's offsets: the server's own zones may not be loaded, and end in 2038."""
        if zone == UTC:
            return tree
        found = utc_offsets(zone)
        epoch = self.convert(text(EPOCH.isoformat(" ")), DataType("timestamp"))
        elapsed = call("TIMESTAMPDIFF", exp.Var(this="SECOND"), epoch, tree)
        place = call("INTERVAL", elapsed, *[number(start) for start, _ in found[1:]])
        which = exp.Add(this=place, expression=number(1))
        offset = call("ELT", which, *[text(str(seconds)) for _, seconds in found])
        shifted = _add_interval(tree.copy(), exp.Cast(this=offset, to=_build_type("SIGNED")), "SECOND")
        beyond = exp.GTE(this=call("YEAR", tree.copy()), expression=number(LAST_YEAR))
        refusal = self.reject(
            "to_timezone",
            self.to_text(tree.copy()),
            f"is after the year {LAST_YEAR - 1}",
            DataType("timestamp"),
        )
        return case((beyond, refusal), otherwise=shifted)

    def start_of(self, unit: str, tree: exp.Expression) -> exp.Expression:
        if unit == "week":
            day = call("DATE", tree)
            start: exp.Expression = _add_interval(day, exp.Neg(this=call("WEEKDAY", tree.copy())), "DAY")
        elif unit == "quarter":
            month = exp.Sub(
                this=exp.Mul(this=call("QUARTER", tree), expression=number(3)), expression=number(2)
            )
            padded = call("LPAD", month, number(2), text("0"))
            start = call("CONCAT", call("DATE_FORMAT", tree.copy(), text("%Y-")), padded, text("-01"))
        else:
            start = call("DATE_FORMAT", tree, text(_FORMATS[unit]))
        return self.convert(start, DataType("timestamp"))

    # --- numbers ---

    def round(self, tree: exp.Expression, digits: int, data_type: DataType | None) -> exp.Expression:
        if data_type is not None and data_type.kind in _REALS:
            exact = exp.Cast(this=self.to_text(tree), to=_build_type("DECIMAL(65, 30)"))
            return self.convert(call("ROUND", exact, number(digits)), data_type)
        return call("ROUND", tree, number(digits))

    def decimal_of(self, tree: exp.Expression, data_type: DataType) -> exp.Expression:
        return self.convert(self.to_text(tree), data_type)

    def random(self) -> exp.Expression:
        return call("RAND")

    # --- errors ---

    def reject(self, column: str, tree: exp.Expression, what: str, data_type: DataType) -> exp.Expression:
        message = concat(
            text(f"<<ematix_flow: column '{column}': '"), self.left(tree, _SHOWN), text(f"' {what}>>")
        )
        return self.raise_error(message, data_type)

    def raise_error(self, message: exp.Expression, data_type: DataType) -> exp.Expression:
        # no function of a SELECT fails with a given text, but the error for a too long lock name shows it
        failing = call("IS_FREE_LOCK", concat(message, call("REPEAT", text(" "), number(_PADDING))))
        return self.convert(failing, data_type)


def _exact(tree: exp.Expression) -> exp.Expression:
    utf8 = exp.DataType(this=exp.DataType.Type.CHARACTER_SET, kind=exp.Var(this="utf8mb4"))
    return exp.Collate(this=exp.Cast(this=tree, to=utf8), expression=exp.Var(this=_COLLATION))


def _replacement(parts: tuple[str | int, ...], shift: int, before: str) -> exp.Expression:
    """ICU writes ``$1`` and PCRE ``\\1``; in hex, so that no text can end the comment around it."""
    icu = (f"${before}" if before else "") + write_replacement(parts, "java", shift)
    pcre = (f"\\{before}" if before else "") + write_replacement(parts, "re2", shift)
    return exp.Var(this=f"/*!80000 {_hex(icu)} *//*M! {_hex(pcre)} */")


def _hex(written: str) -> str:
    return f"_utf8mb4 X'{written.encode().hex()}'"


def _add_interval(tree: exp.Expression, amount: exp.Expression, unit: str) -> exp.Expression:
    return call("TIMESTAMPADD", exp.Var(this=unit), amount, tree)


def _build_type(name: str) -> exp.DataType:
    return exp.DataType.build(name, dialect="mysql")
