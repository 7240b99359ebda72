"""Normalisers and pre-transforms as values: what may be declared, and what survives JSON."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from ematix_flow import normalize as n
from ematix_flow import transforms
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.normalize import Normalizer, normalizer_from_json
from ematix_flow.spec.time_format import read_format
from ematix_flow.spec.transforms import is_pre_transform, pre_transform_from_json

EVERY_MARKER = [
    n.trim(),
    n.lower(),
    n.upper(),
    n.empty_to_null(),
    n.whitespace_to_null(),
    n.replace("a", "b"),
    n.regex_replace(r"(\d+)", r"<\1>"),
    n.truncate(5),
    n.email_normalize(),
    n.phone_normalize(),
    n.parse_timestamp(),
    n.parse_timestamp("YYYY-MM-DD", on_failure="default", default=dt.datetime(2020, 1, 1)),
    n.parse_date(formats=["%d.%m.%Y", "ISO8601"], on_failure="default", default=dt.date(2020, 1, 1)),
    n.to_timezone("Europe/Berlin"),
    n.date_trunc("month"),
    n.parse_int("default", 0),
    n.parse_numeric(10, 2, on_failure="error"),
    n.parse_numeric(10, 2, "default", "1.50"),
    n.round(2),
    n.clamp(0, Decimal("9.5")),
    n.clamp(None, dt.date(2030, 1, 1)),
    n.parse_bool(),
    n.parse_bool(truthy=["JA"], falsy=["nein"]),
    n.default("x"),
    n.not_null_or(1.5),
    n.nullif(True),
    n.default(dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)),
    n.sql("upper(col)"),
    n.derive("a || b"),
]
EVERY_PRE_TRANSFORM = [
    n.deduplicate_by("a", "b", order_by="c desc"),
    n.deduplicate_by(keys=("a",)),
    n.filter_where("a > 1"),
    n.limit(10),
    n.sample_pct(0.1),
]


@pytest.mark.parametrize("marker", EVERY_MARKER, ids=repr)
def test_a_normaliser_survives_json(marker):
    again = normalizer_from_json(json.loads(json.dumps(marker.to_json())))
    assert again == marker
    assert hash(again) == hash(marker)


@pytest.mark.parametrize("transform", EVERY_PRE_TRANSFORM, ids=repr)
def test_a_pre_transform_survives_json(transform):
    assert pre_transform_from_json(json.loads(json.dumps(transform.to_json()))) == transform
    assert is_pre_transform(transform)
    assert transform.name == transform.to_json()["name"]


def test_both_modules_offer_the_pre_transforms():
    assert transforms.deduplicate_by is n.deduplicate_by
    assert transforms.filter_where is n.filter_where
    assert transforms.limit is n.limit
    assert transforms.sample_pct is n.sample_pct


def test_the_keys_of_duplicates_can_be_given_in_three_ways():
    expected = n.deduplicate_by("a", order_by="b desc")
    assert n.deduplicate_by(keys=("a",), order_by=["b desc"]) == expected
    assert n.deduplicate_by(keys="a", order_by="b desc") == expected


def test_a_default_moment_is_in_utc():
    marker = n.parse_timestamp(on_failure="default", default="2020-01-01T02:00:00+02:00")
    assert marker["default"] == dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    assert n.parse_timestamp(on_failure="default", default=dt.date(2020, 1, 1)) == marker.__class__(
        "parse_timestamp", (("formats", n.DEFAULT_TIMESTAMP_FORMATS), *marker.args[1:])
    )


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (lambda: n.replace("", "x"), "would replace nothing"),
        (lambda: n.replace(1, "x"), "must be a text"),
        (lambda: n.truncate(-1), "must not be negative"),
        (lambda: n.truncate(True), "whole number"),
        (lambda: n.regex_replace("(", ""), "is wrong"),
        (lambda: n.regex_replace("(?=a)b", ""), r"\(\?…\) that is not portable"),
        (lambda: n.regex_replace(r"(a)\1", ""), "refers back"),
        (lambda: n.regex_replace("[[:alpha:]]", ""), "POSIX"),
        (lambda: n.regex_replace("a.*?b.*", ""), "greedy and lazy"),
        (lambda: n.regex_replace("a++", ""), "possessive"),
        (lambda: n.regex_replace(r"\p{L}", ""), "not the same everywhere"),
        (lambda: n.regex_replace("a{300}", ""), "more than 255"),
        (lambda: n.regex_replace("x*", "-"), "matches the empty text"),
        (lambda: n.regex_replace("(a)", r"\2"), "names group 2"),
        (lambda: n.regex_replace("a", "b\\"), "single backslash"),
        (lambda: n.regex_replace("a", "b", flags="gx"), "the flags are"),
        (lambda: n.parse_timestamp("YYYY-MM-DD", formats=["YYYYMMDD"]), "not both"),
        (lambda: n.parse_timestamp(formats=[]), "at least one format"),
        (lambda: n.parse_timestamp("YYYY-MM"), "needs one day"),
        (lambda: n.parse_timestamp("YYYY-MM-DD MM"), "month twice"),
        (lambda: n.parse_timestamp("YYYY-MM-DD QQ"), "not a token"),
        (lambda: n.parse_timestamp("%Y-%m-%d %Q"), "not supported"),
        (lambda: n.parse_timestamp("YYYY-MM-DD HH12:MI"), "12-hour"),
        (lambda: n.parse_timestamp("YYYY-MM-DD MI"), "minute without"),
        (lambda: n.parse_timestamp("%Y-%m-%d %I:%M:%S.%f %p %z"), "more fields"),
        (lambda: n.parse_timestamp(on_failure="ignore"), "the rules are"),
        (lambda: n.parse_timestamp(on_failure="default"), "needs default="),
        (lambda: n.parse_timestamp(default="2020-01-01"), "needs on_failure='default'"),
        (lambda: n.parse_timestamp(on_failure="default", default="soon"), "not an ISO 8601"),
        (lambda: n.parse_date(on_failure="default", default="soon"), "is not a date"),
        (lambda: n.parse_date(on_failure="default", default=dt.datetime(2020, 1, 1)), "takes a date"),
        (lambda: n.to_timezone("Europe/Berlinn"), "Did you mean 'Europe/Berlin'"),
        (lambda: n.date_trunc("mont"), "Did you mean 'month'"),
        (lambda: n.parse_int(default="1", on_failure="default"), "wrong type"),
        (lambda: n.parse_int("default", True), "wrong type"),
        (lambda: n.parse_int("default", 2**63), "64 bits"),
        (lambda: n.parse_numeric(2, 5), "scale <= precision"),
        (lambda: n.parse_numeric(4, 2, "default", 100), "does not fit"),
        (lambda: n.parse_numeric(4, 2, "default", "x"), "is not a number"),
        (lambda: n.round(99), "between -18 and 18"),
        (lambda: n.clamp(), "needs a low or a high bound"),
        (lambda: n.clamp(5, 1), "above the high one"),
        (lambda: n.clamp(1, dt.date(2020, 1, 1)), "cannot be compared"),
        (lambda: n.clamp("a", "b"), "bounds numbers and dates"),
        (lambda: n.parse_bool(truthy="yes"), "several words"),
        (lambda: n.parse_bool(truthy=["y"], falsy=["Y"]), "both true and false"),
        (lambda: n.default(None), "takes a text, a number"),
        (lambda: n.default(float("nan")), "finite"),
        (lambda: n.default("a\x00b"), "NUL"),
        (lambda: n.nullif([1]), "takes a text, a number"),
        (lambda: n.sql("  "), "needs an expression"),
        (lambda: Normalizer("trimm"), "Did you mean 'trim'"),
        (lambda: Normalizer("truncate"), "lacks its argument 'n'"),
        (lambda: n.deduplicate_by(), "at least one key"),
        (lambda: n.deduplicate_by("a", keys=("b",)), "not both"),
        (lambda: n.deduplicate_by("a", "a"), "named twice"),
        (lambda: n.deduplicate_by(1), "must be a name"),
        (lambda: n.filter_where(""), "needs a condition"),
        (lambda: n.limit(-1), "whole number from 0"),
        (lambda: n.sample_pct(10), "from 0 to 1"),
        (lambda: pre_transform_from_json({"name": "limits"}), "Did you mean 'limit'"),
    ],
)
def test_a_wrong_declaration_is_refused(write, complaint):
    with pytest.raises(DeclarationError, match=complaint):
        write()


def test_a_declaration_error_is_also_what_python_users_catch():
    with pytest.raises(ValueError):
        n.truncate(-1)
    with pytest.raises(TypeError):
        n.default(None)


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("YYYY-MM-DD", "year month day"),
        ("yyyy/mm/dd hh24:mi:ss.us", "year month day hour minute second fraction"),
        ('DD Month YYYY "o\'clock" HH12 PM', "day month_name year half_day_hour half_day"),
        ("YYYY-MM-DDTHH24:MI:SSOF", "year month day hour minute second offset"),
        ("%d.%m.%y %T", "day month short_year hour minute second"),
        ("FMDD/FMMM/YYYY", "day month year"),
    ],
)
def test_formats_of_both_spellings_are_read(form, fields):
    assert [e.field for e in read_format(form) if e.field] == fields.split()


def test_a_field_next_to_another_has_all_its_digits():
    assert all(e.fixed for e in read_format("YYYYMMDD"))
    assert not any(e.fixed for e in read_format("YYYY-MM-DD") if e.field)
