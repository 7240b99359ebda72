"""Parses text as a number, a boolean, a date or a timestamp, the same on every engine.

A regular expression first accepts only text that can be parsed; other text follows the rule for failures. So
no engine's own idea of a valid text matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from ematix_flow.errors import Unsupported
from ematix_flow.spec.normalizer_arguments import Scalar
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.functions.base import (
    SqlFunctions,
    TypedValue,
    all_of,
    call,
    case,
    concat,
    is_null,
    number,
    text,
)
from ematix_flow.strategies.functions.column_site import ColumnSite
from ematix_flow.strategies.functions.time_patterns import (
    MONTHS,
    VALID_DATE,
    VALID_MOMENT,
    TimePattern,
    patterns_of,
)

TEXT, BIG_INT, BOOLEAN = DataType("text"), DataType("big_int"), DataType("boolean")
DATE, NAIVE, MOMENT = DataType("date"), DataType("timestamp"), DataType("timestamp_tz")
_AS_TEXT = frozenset({"json", "jsonb", "uuid", "date", "numeric", *INTEGER_BITS})
_NOT_READ = "?"  # in front of a text that no format takes: such a text is never valid ISO


@dataclass(frozen=True)
class OnFailure:
    """What to do with a text that cannot be parsed: ``rule`` is null, error or default."""

    rule: str = "error"
    default: Scalar | None = None


def as_text(value: TypedValue, site: ColumnSite) -> TypedValue:
    """The value as text, if every engine writes it in the same form."""
    if value.kind in ("text", "string"):
        return TypedValue(value.tree, TEXT)
    if value.kind == "boolean":
        value = site.own_level(value)
        return TypedValue(
            case((value.tree, text("true")), (exp.Not(this=value.tree.copy()), text("false"))), TEXT
        )
    if value.type is None or value.kind in _AS_TEXT:
        return TypedValue(site.functions.to_text(value.tree), TEXT)
    raise Unsupported(
        f"column {site.column!r}: the source gives {value.type}, which engines write as text differently",
        next_step="convert it in the source SQL, or with sql(…)",
    )


def _trim(value: TypedValue, site: ColumnSite) -> exp.Expression:
    return site.own_level(TypedValue(site.functions.trim(as_text(value, site).tree), TEXT)).tree


def parse_int(value: TypedValue, site: ColumnSite, failure: OnFailure) -> TypedValue:
    functions, result = site.functions, "is not a whole number of 64 bits"
    if value.kind in INTEGER_BITS:
        return value
    if value.kind == "boolean":
        value = site.own_level(value)
        return TypedValue(
            case((value.tree, number(1)), (exp.Not(this=value.tree.copy()), number(0))), BIG_INT
        )
    if value.kind in ("numeric", "float", "double"):
        value = site.own_level(value)
        return _read_or_fail(value, _whole(value, functions), site, failure, BIG_INT, result)
    source = _trim(value, site)
    is_in_range = functions.matches(source.copy(), f"^(?:[+]?{_up_to(2**63 - 1)}|-{_up_to(2**63)})$")
    read = (is_in_range, functions.convert(source.copy(), BIG_INT))
    return _read_or_fail(TypedValue(source, TEXT), read, site, failure, BIG_INT, result)


def parse_numeric(value: TypedValue, to: DataType, site: ColumnSite, failure: OnFailure) -> TypedValue:
    assert to.precision is not None and to.scale is not None
    functions, result = site.functions, f"is not a number of {to}"
    whole, limit = to.precision - to.scale, number(10 ** (to.precision - to.scale))
    if value.kind in INTEGER_BITS or value.kind == "numeric":
        value = site.own_level(value)
        rounded = functions.round(value.tree.copy(), to.scale, value.type)
        fits = functions.less(call("ABS", rounded), limit)
        return _read_or_fail(value, (fits, functions.convert(rounded.copy(), to)), site, failure, to, result)
    if value.kind in ("float", "double"):
        value = site.own_level(value)
        fits = exp.LT(this=call("ABS", value.tree.copy()), expression=limit)
        return _read_or_fail(
            value, (fits, functions.decimal_of(value.tree.copy(), to)), site, failure, to, result
        )
    source = _trim(value, site)
    digits = f"[0-9]{{1,{whole}}}" if whole else "0"
    shape = functions.matches(source.copy(), f"^[+-]?(?:0*{digits}(?:[.][0-9]*)?|0*[.][0-9]+)$")
    # 99.995 as Numeric[4, 2] would round up to 100.00, which does not fit
    over = functions.matches(source.copy(), f"^[+-]?0*{'9' * whole}[.]{'9' * to.scale}[5-9]")
    read = (all_of(shape, exp.Not(this=over)), functions.convert(source.copy(), to))
    return _read_or_fail(TypedValue(source, TEXT), read, site, failure, to, result)


def parse_bool(
    value: TypedValue, truthy: Sequence[str], falsy: Sequence[str], site: ColumnSite, failure: OnFailure
) -> TypedValue:
    if value.kind == "boolean":
        return value
    functions = site.functions
    lowered = functions.lower(functions.trim(as_text(value, site).tree))
    source = site.own_level(TypedValue(lowered, TEXT))
    branches = [
        (exp.In(this=source.tree.copy(), expressions=[text(w) for w in words]), functions.literal(meaning))
        for words, meaning in ((truthy, True), (falsy, False))
        if words
    ]
    return _read_or_fail(source, branches, site, failure, BOOLEAN, "is neither true nor false")


def parse_timestamp(
    value: TypedValue, formats: Sequence[str], site: ColumnSite, failure: OnFailure
) -> TypedValue:
    functions = site.functions
    if value.kind == "timestamp_tz":
        return TypedValue(functions.temporal(value.tree, MOMENT), MOMENT)
    if value.kind == "timestamp":
        return TypedValue(functions.to_utc(functions.temporal(value.tree, NAIVE)), MOMENT)
    if value.kind == "date":
        return TypedValue(functions.to_utc(functions.convert(value.tree, NAIVE)), MOMENT)
    iso = _iso_text(value, formats, site, with_time=True)
    read = (functions.matches(iso.tree.copy(), VALID_MOMENT), functions.timestamp_from_iso(iso.tree.copy()))
    return _read_or_fail(iso, read, site, failure, MOMENT, "is not a timestamp", _readable_iso(iso, site))


def parse_date(value: TypedValue, formats: Sequence[str], site: ColumnSite, failure: OnFailure) -> TypedValue:
    functions = site.functions
    if value.kind == "date":
        return TypedValue(functions.temporal(value.tree, DATE), DATE)
    if value.kind == "timestamp_tz":
        value = TypedValue(functions.from_utc(functions.temporal(value.tree, MOMENT)), NAIVE)
    if value.kind == "timestamp":
        return TypedValue(functions.convert(value.tree, DATE), DATE)
    iso = _iso_text(value, formats, site, with_time=False)
    read = (functions.matches(iso.tree.copy(), VALID_DATE), functions.date_from_iso(iso.tree.copy()))
    return _read_or_fail(iso, read, site, failure, DATE, "is not a date", _readable_iso(iso, site))


def _read_or_fail(
    source: TypedValue,
    read: tuple[exp.Expression, exp.Expression] | Sequence[tuple[exp.Expression, exp.Expression]],
    site: ColumnSite,
    failure: OnFailure,
    to: DataType,
    what: str,
    shown: exp.Expression | None = None,
) -> TypedValue:
    """The first branch that accepts the value, or else the rule for failures. NULL stays NULL."""
    branches = [read] if isinstance(read, tuple) else read
    if failure.rule == "null":
        return TypedValue(case(*branches), to)
    functions = site.functions
    null = (is_null(source.tree.copy()), exp.Null())
    if failure.rule == "default":
        assert failure.default is not None
        otherwise = functions.literal(failure.default)
        if to.kind in ("numeric", "big_int"):
            otherwise = functions.convert(otherwise, to)
    else:
        if shown is None:
            shown = source.tree.copy() if source.type == TEXT else functions.to_text(source.tree.copy())
        otherwise = functions.reject(site.column, shown, what, to)
    return TypedValue(case(null, *branches, otherwise=otherwise), to)


def _whole(value: TypedValue, functions: SqlFunctions) -> tuple[exp.Expression, exp.Expression]:
    """A number without fraction, within 64 bits. The largest double below 2**63 ends in 4784."""
    highest = 2**63 - 1 if value.kind == "numeric" else 9223372036854774784
    tree = value.tree
    fits = all_of(
        functions.is_whole(tree.copy(), value.type),
        exp.Not(this=functions.less(tree.copy(), number(-(2**63)))),
        exp.Not(this=functions.less(number(highest), tree.copy())),
    )
    return fits, functions.convert(tree.copy(), BIG_INT)


def _up_to(limit: int) -> str:
    """A pattern of the whole numbers from 0 to a ``limit`` of 19 digits, leading zeros allowed."""
    digits = str(limit)
    choices = [f"[0-9]{{1,{len(digits) - 1}}}"]
    for place, digit in enumerate(digits):
        rest = len(digits) - place - 1
        lowest = "1" if place == 0 else "0"
        if digit > lowest:
            below = f"[{lowest}-{chr(ord(digit) - 1)}]"
            choices.append(digits[:place] + below + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"0*(?:{'|'.join([*choices, digits])})"


# --- ISO text ----------------------------------------------------------------------------------------


def _iso_text(value: TypedValue, formats: Sequence[str], site: ColumnSite, *, with_time: bool) -> TypedValue:
    """``2024-1-2`` or ``2024-1-2 3:04:05.678+00:00`` from the first format that takes the text."""
    if value.type is not None and value.kind not in ("text", "string"):
        raise Unsupported(
            f"column {site.column!r}: the source gives {value.type}, and a date or time is read from text",
            next_step="convert it in the source SQL, or with sql(…)",
        )
    functions = site.functions
    source = site.own_level(TypedValue(functions.lower(functions.trim(as_text(value, site).tree)), TEXT)).tree
    branches = []
    for pattern in (p for form in formats for p in patterns_of(form)):
        rewrite = _Rewrite(source, pattern, functions)
        rewrite.date()
        if with_time:
            rewrite.time()
        branches.append((functions.matches(source.copy(), pattern.shape), rewrite.iso()))
    unread = concat(text(_NOT_READ), source.copy())
    return site.own_level(TypedValue(case(*branches, otherwise=unread), TEXT))


def _readable_iso(iso: TypedValue, site: ColumnSite) -> exp.Expression:
    return site.functions.rewrite(iso.tree.copy(), "^[?]", "")


class _Rewrite:
    """Rewrites the fields of a matched text in ISO order, with as few replacements as possible."""

    def __init__(self, source: exp.Expression, pattern: TimePattern, functions: SqlFunctions) -> None:
        self.source = source
        self.pattern = pattern
        self.functions = functions
        self.pieces: list[str | exp.Expression] = []  # templates, and trees between them

    def date(self) -> None:
        group = self.pattern.group
        if date := group("iso_date"):
            self._write(rf"\{date}")
            return
        if year := group("year"):
            self._write(rf"\{year}-")
        else:
            short = self._take(rf"\{group('short_year')}")
            self._write(case((exp.LT(this=short, expression=text("70")), text("20")), otherwise=text("19")))
            self._write(rf"\{group('short_year')}-")
        if month := group("month"):
            self._write(rf"\{month}")
        else:
            name = self._take(rf"\{group('month_name')}")
            self._write(
                case(
                    *(
                        (exp.EQ(this=name.copy(), expression=text(m)), text(str(n)))
                        for n, m in enumerate(MONTHS, 1)
                    )
                )
            )
        self._write(rf"-\{group('day')}")

    def time(self) -> None:
        group = self.pattern.group
        half, hour = group("half_day"), group("hour") or group("half_day_hour")
        if clock := group("iso_seconds") or group("iso_fraction"):
            self._write(rf" \{clock}")
        elif clock := group("iso_minutes"):
            self._write(rf" \{clock}:00")
        elif hour:
            self._write(" ")
            self._write(rf"\{hour}" if half is None else self._hour_of_day(hour, half))
            self._write(rf":\{group('minute')}" if group("minute") else ":00")
            self._write(rf":\{group('second')}" if group("second") else ":00")
        else:
            self._write(" 00:00:00+00:00")
            return
        if fraction := group("fraction"):
            self._write(rf".\{fraction}")
        hours, minutes = group("offset_hours"), group("offset_minutes")
        self._write((rf"\{hours}" if hours else "+00") + (rf":\{minutes}" if minutes else ":00"))

    def iso(self) -> exp.Expression:
        return concat(*(self._take(p) if isinstance(p, str) else p for p in self.pieces))

    def _hour_of_day(self, hour: int, half: int) -> exp.Expression:
        of_half = exp.Mod(
            this=self.functions.convert(self._take(rf"\{hour}"), BIG_INT), expression=number(12)
        )
        afternoon = exp.EQ(this=self._take(rf"\{half}"), expression=text("p"))
        shift = case((afternoon, number(12)), otherwise=number(0))
        return self.functions.to_text(exp.Paren(this=exp.Add(this=exp.Paren(this=of_half), expression=shift)))

    def _write(self, piece: str | exp.Expression) -> None:
        last = self.pieces[-1] if self.pieces else None
        if isinstance(piece, str) and isinstance(last, str):
            self.pieces[-1] = last + piece
        else:
            self.pieces.append(piece)

    def _take(self, template: str) -> exp.Expression:
        if "\\" not in template:
            return text(template)
        return self.functions.rewrite(self.source.copy(), self.pattern.capture, template)
