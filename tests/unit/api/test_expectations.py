"""``expectations=`` and its companions: what they become, and how a wrong one is refused."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, Target, Text, TimestampTZ, ematix, pk
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.streams import StreamSpec
from ematix_probe import probe, source
from ematix_probe.tester import Tester
from tests.stream_runs import stream


@ematix.table(schema="shop")
class Orders:
    __unique_constraints__ = (("email",),)

    order_id: Annotated[BigInt, pk()]
    amount: BigInt | None
    email: Text
    at: TimestampTZ


def declare(*decorators: Any, **options: Any) -> PipelineSpec:
    options.setdefault("target", Orders)

    def orders(conn: Any) -> str:
        return "SELECT 1"

    for decorator in reversed(decorators):
        orders = decorator(orders)
    return ematix.pipeline(**options)(orders).spec


def actions(spec: PipelineSpec | StreamSpec) -> list[tuple[str, str]]:
    return [(rule.label, rule.action) for rule in spec.expectations.rules]


def known(t: Tester) -> None:
    t.column("amount").not_null()
    t.column("email").regex("@", severity="warn")


# ------------------------------------------------------------------ what is right


def test_assertions_take_the_action_of_the_pipeline_and_fail_by_default() -> None:
    assert actions(declare(expectations=known)) == [("amount.not_null", "fail"), ("email.regex", "warn")]
    spec = declare(expectations=known, on_fail="quarantine")
    assert actions(spec) == [("amount.not_null", "quarantine"), ("email.regex", "warn")]
    assert actions(declare(expectations=known, on_quality_failure="warn"))[0] == ("amount.not_null", "warn")


def test_the_aliases_have_the_action_that_their_name_says() -> None:
    spec = declare(
        expectations=[
            ematix.expect("a", "amount > 0"),
            ematix.expect_or_drop("b", "amount > 1"),
            ematix.expect_or_fail("c", "amount > 2"),
            ematix.expect_all({"d": "amount > 3", "e": "amount > 4"}),
            ematix.expect_all_or_drop({"f": "amount > 5"}),
            ematix.expect_all_or_fail({"g": "amount > 6"}),
        ]
    )
    assert actions(spec) == [
        ("a", "warn"),
        ("b", "quarantine"),
        ("c", "fail"),
        ("d", "warn"),
        ("e", "warn"),
        ("f", "quarantine"),
        ("g", "fail"),
    ]


def test_a_condition_is_sql_an_assertion_or_a_function_of_the_tester() -> None:
    tester = Tester()
    tester.column("amount").between(1, 5)
    spec = declare(
        expectations=[
            ematix.expect("range", tester.assertions[0]),
            ematix.expect_or_fail("mail", lambda t: t.column("email").regex("@")),
            ematix.expect("both", lambda t: t.column("email").not_null().unique()),
        ]
    )
    assert [rule.label for rule in spec.expectations.rules] == [
        "range",
        "mail",
        "both: email.not_null",
        "both: email.unique",
    ]


def test_decorators_below_the_pipeline_add_their_expectations_in_their_order() -> None:
    spec = declare(
        ematix.expect("a", "amount > 0"),
        ematix.expect_or_drop("b", "amount > 1"),
        expectations=[ematix.expect("c", "amount > 2")],
    )
    assert [label for label, _ in actions(spec)] == ["c", "a", "b"]


def test_expectations_among_pre_transforms_are_part_of_the_gate() -> None:
    spec = declare(transforms_pre=[ematix.expect_or_drop("a", "amount > 0")])
    assert (actions(spec), spec.transforms_pre) == ([("a", "quarantine")], ())


def test_a_probe_gives_its_assertions_or_runs_before_or_after_the_load(tmp_path: Any) -> None:
    @probe.data(source=source.sqlite(str(tmp_path / "l.db")), table="orders")
    def checks(t: Tester) -> None:
        t.column("amount").not_null()

    assert actions(declare(expectations=checks)) == [("amount.not_null", "fail")]
    spec = declare(transforms_pre=[checks], transforms_post=[checks])
    assert spec.probes_pre == ("checks",)
    assert [(step.kind, step.text) for step in spec.transforms_post] == [("probe", "checks")]


def test_the_declared_table_implies_its_keys_and_required_columns() -> None:
    spec = declare(expectations="table", on_fail="warn")
    (target,) = spec.targets
    assert target.table is not None
    assert [(rule.label, rule.action) for rule in spec.expectations.for_table(target.table)] == [
        ("order_id.not_null", "warn"),
        ("email.not_null", "warn"),
        ("at.not_null", "warn"),
        ("order_id.unique", "warn"),
        ("email.unique", "warn"),
    ]


def test_only_a_policy_that_warns_sends_alerts_about_rules_that_warn() -> None:
    def alerting(**options: Any) -> list[bool]:
        return [rule.alerts for rule in declare(**options).expectations.rules]

    assert alerting(expectations=known) == [True, False]
    assert alerting(expectations=known, on_fail="warn") == [True, False]
    assert alerting(expectations=known, alert_on_quality_warn=True) == [True, True]
    assert alerting(expectations=[ematix.expect("a", "amount > 0")]) == [False]


def test_expectations_survive_json() -> None:
    spec = declare(
        expectations=[ematix.expect_or_drop("a", "amount > 0"), known, "table"], quarantine="bad.orders"
    )
    again = PipelineSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.expectations == spec.expectations
    assert ExpectationsSpec.from_json(None) == ExpectationsSpec()


# ------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expectations": known, "on_fail": "quarantin"}, "Did you mean 'quarantine'"),
        ({"expectations": known, "on_fail": "fail", "on_quality_failure": "fail"}, "mean the same"),
        ({"on_fail": "fail"}, "on_fail= works with expectations=, which is not set"),
        ({"quarantine": "bad"}, "quarantine= works with expectations="),
        ({"alert_on_quality_warn": True}, "alert_on_quality_warn= works with expectations="),
        ({"expectations": known, "alert_on_quality_warn": "yes"}, "takes True or False, not 'yes'"),
        ({"expectations": known, "quarantine": "bad"}, "no expectation sets rows aside"),
        ({"expectations": known, "quarantine": "a.b.c"}, "takes the name of a table, not 'a.b.c'"),
        ({"expectations": "tables"}, "'tables' is unknown: the only text is \"table\""),
        ({"expectations": 5}, 'or "table", not 5'),
        ({"expectations": [ematix.expect("a", "x > 0")], "on_fail": "warn"}, "each of these has one"),
        ({"expectations": lambda t: None}, "adds no assertion"),
        ({"expectations": lambda t: t.column("amount").between(5, 1)}, "between"),
        ({"expectations": lambda t: t.drift()}, "compares with recorded runs"),
        (
            {"expectations": lambda t: t.row_count(at_least=1), "on_fail": "quarantine"},
            "has no single rows to set aside",
        ),
        (
            {"expectations": [ematix.expect("a", "amount > 0"), ematix.expect_or_drop("a", "amount > 1")]},
            "two expectations are called 'a'",
        ),
    ],
)
def test_a_wrong_option_is_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare(**options)
    assert said in refused.value.what
    assert refused.value.where is not None


def test_several_targets_of_a_connection_do_not_share_a_quarantine_table() -> None:
    @ematix.table(schema="shop")
    class Others:
        order_id: Annotated[BigInt, pk()]

    targets = [Target(connection="db", table=table) for table in (Orders, Others)]
    rules = [ematix.expect_or_drop("a", "order_id > 0")]
    with pytest.raises(DeclarationError, match="rows of several targets of one connection"):
        declare(target=None, targets=targets, expectations=rules, quarantine="bad")
    declare(target=None, targets=targets, expectations=rules)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ematix.expect("a", 5), "not 5"),
        (lambda: ematix.expect("", "x > 0"), "takes a name and a condition, not ''"),
        (lambda: ematix.expect(["a"], "x > 0"), "takes a name and a condition, not ['a']"),
        (lambda: ematix.expect("a", "  "), "the condition of 'a'"),
        (lambda: ematix.expect_all([]), "takes a mapping of name and condition, not []"),
        (lambda: ematix.expect_all({}), "takes a mapping of name and condition"),
        (lambda: ematix.expect_or_drop("a", lambda t: t.row_count(at_least=1)), "no single rows"),
    ],
)
def test_a_wrong_expectation_is_refused_where_it_is_written(call: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        call()
    assert said in refused.value.what
    assert "test_expectations.py" in str(refused.value.where)


def test_a_decorator_above_the_pipeline_is_refused_with_its_right_place() -> None:
    def orders(conn: Any) -> str:
        return "SELECT 1"

    declared = ematix.pipeline(target=Orders)(orders)
    with pytest.raises(DeclarationError, match=r"@ematix\.expect_or_drop is above the decorator"):
        ematix.expect_or_drop("a", "amount > 0")(declared)


# ------------------------------------------------------------------ streams

TOML = """
pipeline_name = "orders"
source_query = "orders"
on_fail = "quarantine"
quarantine = "bad.orders"
[source]
kind = "kafka"
bootstrap_servers = "localhost:9092"
[target]
kind = "sqlite"
path = "shop.db"
table = "orders"

[[expectations]]
name = "positive"
sql = "amount > 0"
tolerate = 0.1

[[expectations]]
check = "between"
column = "amount"
low = 1
on_fail = "warn"

[[expectations]]
check = "unique"
columns = ["id", "amount"]

[[expectations]]
check = "row_count"
at_least = 1
on_fail = "fail"
"""


def test_a_stream_declares_its_expectations_in_toml_and_is_written_as_it_was_read() -> None:
    spec = stream_from_text(TOML)
    assert actions(spec) == [
        ("positive", "quarantine"),
        ("amount.between", "warn"),
        ("unique_group(id, amount)", "quarantine"),
        ("row_count", "fail"),
    ]
    assert (spec.expectations.rules[0].assertion.options.tolerate, spec.expectations.quarantine) == (
        0.1,
        "bad.orders",
    )
    assert stream_from_text(stream_to_toml(spec)).expectations == spec.expectations
    assert StreamSpec.from_json(json.loads(json.dumps(spec.to_json()))).expectations == spec.expectations


def test_the_declared_table_of_a_stream_in_toml_implies_expectations() -> None:
    text = TOML[: TOML.index("[[expectations]]")].replace('quarantine = "bad.orders"', "")
    spec = stream_from_text(text.replace("[source]", 'expectations = "table"\n[source]', 1))
    assert spec.expectations.of_table == "quarantine"
    assert stream_from_text(stream_to_toml(spec)).expectations == spec.expectations


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ('name = "positive"', 'nam = "positive"', "name", 15),
        ('sql = "amount > 0"', "", "it has no sql", 14),
        ('check = "between"', 'check = "betwen"', "Did you mean 'between'", 20),
        ('on_fail = "warn"', 'on_fail = "ignore"', "on_fail='ignore' is unknown", 23),
        ("tolerate = 0.1", "tolerate = 2", "tolerate", None),
        ('column = "amount"', "", "it has no column", None),
        ('at_least = 1\non_fail = "fail"', "at_least = 1", "no single rows to set aside", None),
    ],
)
def test_a_wrong_expectation_in_toml_is_refused_at_its_line(
    old: str, new: str, said: str, line: int | None
) -> None:
    assert old in TOML
    with pytest.raises(DeclarationError) as refused:
        stream_from_text(TOML.replace(old, new))
    assert said in refused.value.what
    if line is not None:
        assert f":{line}" in str(refused.value.where)


def test_a_stream_of_change_events_takes_no_expectations() -> None:
    from ematix_flow import CDC, KafkaConnection

    with pytest.raises(DeclarationError, match="with cdc= a batch holds change events"):
        stream(
            source=KafkaConnection(name="k", bootstrap_servers="localhost:1"),
            source_query="t",
            target=SQLiteConnection(name="l", path="l.db"),
            target_table="orders",
            cdc=CDC(),
            keys=["id"],
            expectations=[ematix.expect("a", "amount > 0")],
        )


def test_an_expectation_is_a_value_that_can_be_given_itself() -> None:
    tester = Tester()
    tester.column("amount").not_null()
    rule = Expectation(tester.assertions[0], "quarantine")
    assert actions(declare(expectations=[rule])) == [("amount.not_null", "quarantine")]
