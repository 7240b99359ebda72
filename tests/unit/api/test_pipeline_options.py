"""Every option of ``@ematix.pipeline``: what it becomes, and how a wrong one is refused."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, Target, Text, TimestampTZ, ematix, natural_key, pk
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.pipelines import PipelineSpec, TransformSpec
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.spec.workflows import WorkflowSpec
from ematix_flow.transforms import deduplicate_by, filter_where


@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    email: Text | None
    name: Text | None
    updated_at: TimestampTZ


@ematix.table(schema="analytics")
class Versioned:
    version_id: Annotated[BigInt, pk()]
    customer_id: Annotated[BigInt, natural_key()]


def declare(**options: Any) -> PipelineSpec:
    options.setdefault("target", CustomerDim)

    @ematix.pipeline(**options)
    def sync_customers(conn: Any) -> str:
        return "SELECT 1"

    return sync_customers.spec


def test_append_into_the_default_connection_is_the_default() -> None:
    (target,) = declare().targets
    assert (target.mode, target.connection, target.label) == (
        "append",
        "default",
        "default:analytics.customer_dim",
    )


@ematix.table(schema="analytics")
class Contact:
    __unique_constraints__ = (("email",), ("phone", "country"))

    contact_id: Annotated[BigInt, pk()]
    email: Text
    phone: Text
    country: Text


def test_the_first_unique_constraint_is_the_key_of_a_merge_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"matched by \(email\) from __unique_constraints__"):
        (target,) = declare(target=Contact, mode="merge").targets
    assert target.keys == ("email",)


def test_a_target_made_of_a_table_takes_its_own_options_and_column_map() -> None:
    spec = declare(
        target=None,
        targets=[
            ematix.target(CustomerDim, mode="merge", target_connection="warehouse"),
            ematix.target(CustomerDim, mode="append", column_map={"email": "mail"}),
        ],
        target_connection="archive",
    )
    merged, appended = spec.targets
    assert (merged.label, merged.mode, merged.keys) == (
        "warehouse:analytics.customer_dim",
        "merge",
        ("customer_id",),
    )
    assert (appended.label, appended.column_map) == ("archive:analytics.customer_dim", (("email", "mail"),))
    assert PipelineSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_target_made_of_anything_else_is_refused_at_its_line() -> None:
    for wrong, match in (("orders", "is not a table"), (CustomerDim, "mode='upsert' is unknown")):
        with pytest.raises(DeclarationError, match=match) as error:
            ematix.target(wrong, mode="upsert")
        assert __file__ in str(error.value.where)
    with pytest.raises(DeclarationError, match="has no option 'conection'"):
        ematix.target(CustomerDim, conection="warehouse")  # type: ignore[call-arg]


def test_a_stream_refuses_a_column_map() -> None:
    with pytest.raises(DeclarationError, match="transform_sql"):

        @ematix.streaming_pipeline(
            source="broker",
            source_query="orders",
            targets=[ematix.target(CustomerDim, target_connection="warehouse", column_map={"email": "mail"})],
        )
        def follow() -> None: ...


def test_job_is_another_name_of_pipeline() -> None:
    assert ematix.job is ematix.pipeline


def test_every_option_of_the_documents_is_understood_and_survives_json() -> None:
    spec = declare(
        target_connection="warehouse",
        source_connection="raw_db",
        schedule="0 * * * *",
        timezone="Europe/Berlin",
        mode="scd2",
        name="customers",
        source_table="raw.customers",
        column_map={"email": "mail"},
        keys=("customer_id",),
        compare_columns=["email", "name"],
        event_timestamp_column="updated_at",
        ttl_seconds=86_400 * 30,
        handle_deletes="soft",
        incremental=True,
        watermark_column="updated_at",
        lag=dt.timedelta(seconds=5),
        on_drift="warn",
        force_path="cross_db",
        guarantee="exactly_once",
        depends_on=["ingest_events"],
        upstream_freshness_secs=60,
        retry={"max_attempts": 5, "backoff_seconds": 30, "backoff_factor": 2.0},
        transforms_pre=[
            deduplicate_by(keys=("customer_id",), order_by="updated_at desc"),
            filter_where("name IS NOT NULL"),
        ],
        transforms_post=[
            "ANALYZE analytics.customer_dim",
            ematix.transform_ref("update_mart"),
            lambda conn: None,
        ],
        continue_on_failure_post=True,
        continue_on_target_failure=True,
    )
    assert PipelineSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.targets[0].ttl_seconds == 2_592_000
    assert [step.kind for step in spec.transforms_post] == ["sql", "reference", "function"]


def test_both_spellings_of_retry_say_how_long_to_wait() -> None:
    ours = declare(retry={"max_attempts": 4, "backoff_seconds": 30, "backoff_factor": 2.0}, name="a").retry
    theirs = {"max_attempts": 4, "backoff": "linear", "base_secs": 10, "max_backoff_secs": 25}
    other = declare(retry=theirs, name="b").retry
    assert [ours.delay_seconds(n) for n in (1, 2, 3)] == [30, 60, 120]
    assert [other.delay_seconds(n) for n in (1, 2, 3)] == [10, 20, 25]
    assert RetryPolicy().max_attempts == 1


def test_a_retry_waits_thirty_days_at_most_however_it_grows() -> None:
    grown = RetryPolicy.from_mapping({"max_attempts": 9_999, "backoff_seconds": 60, "backoff_factor": 10.0})
    assert grown.delay_seconds(3) == 6_000 and grown.delay_seconds(9_000) == 30 * 86_400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": None}, "exactly one"),
        ({"targets": [Target(connection="a", table=CustomerDim)]}, "exactly one"),
        ({"mode": "upsert"}, "mode='upsert' is unknown"),
        ({"retry": {"max_attempts": 3, "backoff_seconds": 1e300}}, "waits longer than 30 days: 1e.300 s"),
        ({"on_drift": "evolv"}, "Did you mean 'evolve'"),
        ({"force_path": "cross"}, "Did you mean 'cross_db'"),
        ({"guarantee": "exactly-once"}, "Did you mean 'exactly_once'"),
        ({"schedule": "every day"}, "not a cron expression"),
        ({"schedule": "0 2 * * *", "timezone": "Europe/Berlim"}, "Did you mean 'Europe/Berlin'"),
        ({"timezone": "UTC"}, "which is not set"),
        ({"retry": {"max_attempt": 3}}, "Did you mean 'max_attempts'"),
        ({"retry": {"max_attempts": 0}}, "1 or more"),
        ({"retry": {"backoff": "random"}}, "fixed, linear or exponential"),
        ({"incremental": True}, "needs watermark_column="),
        ({"watermark_column": "updated_at"}, "incremental=True"),
        (
            {"mode": "truncate", "incremental": True, "watermark_column": "updated_at"},
            "cannot be used with incremental=True",
        ),
        ({"lag": 5}, "not incremental"),
        ({"event_timestamp_column": "updated_at"}, "works with mode='scd2'"),
        ({"ttl_seconds": 5}, "works with mode='scd2'"),
        ({"mode": "scd2", "ttl_seconds": 5, "ttl": dt.timedelta(1)}, "give one"),
        ({"mode": "scd2", "ttl_seconds": -5}, "seconds or a timedelta"),
        ({"handle_deletes": "hard"}, "handle_deletes= works with mode="),
        ({"mode": "merge", "handle_deletes": "gone"}, "handle_deletes='gone' is unknown"),
        ({"mode": "merge", "keys": ("custmer_id",)}, "Did you mean 'customer_id'"),
        ({"mode": "merge", "compare_columns": ["mail"]}, "Did you mean 'email'"),
        ({"max_shrink": 2}, "from 0 to 1"),
        ({"transforms_pre": ["name IS NOT NULL"]}, "takes transforms"),
        ({"transforms_post": [3]}, "takes SQL, functions"),
        ({"transforms_post": [lambda: None]}, "takes 0"),
        ({"depends_on": [3]}, "takes names or pipelines"),
        ({"target": dict}, "is not a table"),
        ({"target": None, "targets": []}, "targets= is empty"),
        ({"target": None, "targets": [CustomerDim]}, "takes Target"),
        ({"target": None, "targets": [Target(connection="a")]}, "a target needs table="),
        ({"target": None, "targets": [Target(connection="a", table=CustomerDim, topic="t")]}, "streaming"),
    ],
)
def test_a_wrong_option_is_refused_and_points_at_the_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as raised:
        declare(**options)
    assert raised.value.where is None or raised.value.where.file == __file__
    assert raised.value.exit_code == 2


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="incremntal"):
        declare(incremntal=True)


def test_the_function_takes_none_one_or_two_arguments() -> None:
    assert ematix.pipeline(target=CustomerDim, name="none")(lambda: None).spec.arguments == 0
    assert ematix.pipeline(target=CustomerDim, name="one")(lambda conn: None).spec.arguments == 1
    assert ematix.pipeline(target=CustomerDim, name="two")(lambda src, tgt: None).spec.arguments == 2
    with pytest.raises(DeclarationError, match="takes 3 arguments"):
        ematix.pipeline(target=CustomerDim, name="three")(lambda a, b, c: None)


def test_merge_keys_are_explicit_then_declared_then_natural_then_primary() -> None:
    assert declare(mode="merge", name="pk").targets[0].keys == ("customer_id",)
    assert declare(mode="scd1", name="explicit", keys=("email",)).targets[0].keys == ("email",)
    with pytest.warns(UserWarning, match="natural_key"):
        assert declare(mode="merge", target=Versioned, name="natural").targets[0].keys == ("customer_id",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declare(mode="merge", target=Versioned, keys=("customer_id",), name="silent")


def test_merge_keys_of_the_table_win_over_its_primary_key() -> None:
    @ematix.table(schema="analytics")
    class Keyed:
        __merge_keys__ = ("email",)
        customer_id: Annotated[BigInt, pk()]
        email: Text

    with pytest.warns(UserWarning, match="__merge_keys__"):
        assert declare(mode="merge", target=Keyed).targets[0].keys == ("email",)


def test_merging_a_table_without_any_key_is_refused() -> None:
    @ematix.table(schema="analytics")
    class Keyless:
        name: Text

    with pytest.raises(DeclarationError, match="declares none"):
        declare(mode="merge", target=Keyless)


def test_each_target_has_its_own_options_and_inherits_the_rest() -> None:
    spec = declare(
        target=None,
        mode="merge",
        targets=[
            Target(table=CustomerDim, connection="warehouse"),
            Target(table=CustomerDim, connection="lake", mode="append", partition_by=("name",)),
        ],
    )
    assert [(t.connection, t.mode, t.keys) for t in spec.targets] == [
        ("warehouse", "merge", ("customer_id",)),
        ("lake", "append", ()),
    ]
    assert PipelineSpec.from_json(spec.to_json()) == spec


def test_two_equal_targets_are_refused() -> None:
    with pytest.raises(DeclarationError, match="are the same"):
        declare(target=None, targets=[Target(table=CustomerDim, connection="a")] * 2)


def test_the_decorated_name_is_an_object_that_shows_itself() -> None:
    @ematix.pipeline(target=CustomerDim, target_connection="warehouse", schedule="0 * * * *")
    def sync_customers(conn: Any) -> str:
        """Keep customers fresh."""
        return "SELECT 1"

    assert repr(sync_customers) == "<Pipeline sync_customers: append into warehouse:analytics.customer_dim>"
    assert "<td>0 * * * *</td>" in sync_customers._repr_html_()
    assert sync_customers.__doc__ == "Keep customers fresh."
    assert sync_customers.function(None) == "SELECT 1"
    assert callable(sync_customers)
    assert all(
        callable(getattr(sync_customers, m)) for m in ("sync", "preview", "validate", "plan", "dry_run")
    )


def test_transforms_and_workflows_survive_json() -> None:
    @ematix.transform(name="update_mart", target_connection="warehouse")
    def update(conn: Any, parent: Any) -> None:
        return None

    from ematix_flow import AllOf, AnyOf
    from ematix_flow.graph.registry import current_registry

    workflow = ematix.workflow("nightly", ["a", "b"], triggered_by=AllOf("x", AnyOf("y", "z")))
    transform = current_registry().transforms["update_mart"].spec
    assert TransformSpec.from_json(json.loads(json.dumps(transform.to_json()))) == transform
    assert WorkflowSpec.from_json(json.loads(json.dumps(workflow.to_json()))) == workflow


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jobs": []}, "has no jobs"),
        ({"jobs": ["a", "a"]}, "twice"),
        ({"jobs": ["a"]}, "nothing starts"),
        ({"jobs": ["a"], "schedule": "x"}, "not a cron"),
        ({"jobs": ["a"], "on_message": "topic"}, "on_message= is not supported"),
        ({"jobs": ["a"], "triggered_by": 5}, "takes names"),
        ({"jobs": ["a"], "triggered_by": []}, "at least one name"),
        ({"jobs": ["a"], "schedule": "0 2 * * *", "catchup": "always"}, "catchup='always' is unknown"),
    ],
)
def test_a_wrong_workflow_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        ematix.workflow("nightly", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shedule": "@daily"}, "ematix.pipeline has no option 'shedule'. Did you mean 'schedule'?"),
        ({"retry": 3}, "retry= takes options, not 3"),
        ({"schedule": 5}, "schedule= takes a cron line, not 5"),
        ({"schedule": "@daily", "timezone": "CEST"}, "timezone='CEST' is not known"),
        ({"upstream_freshness_secs": 60}, "upstream_freshness_secs= limits the age"),
    ],
)
def test_a_slip_is_refused_with_its_place(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare(**options)
    assert refused.value.what.startswith(said) and "'EST'" not in refused.value.what
    assert refused.value.where is not None and refused.value.where.file == __file__


def test_a_workflow_without_jobs_is_refused_with_its_place() -> None:
    with pytest.raises(DeclarationError, match=r"ematix\.workflow\(\) missing a required argument: 'jobs'"):
        ematix.workflow("nightly")  # type: ignore[call-arg]
