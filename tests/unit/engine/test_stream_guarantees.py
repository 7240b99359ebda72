"""What a plan shows about a stream's targets before the first message."""

from __future__ import annotations

import dataclasses

import pytest

from ematix_flow import KafkaConnection, RabbitMQConnection, SQLiteConnection
from ematix_flow.api.streaming import stream_spec
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_guarantees import expected_targets
from ematix_flow.errors import GuaranteeRefused, Unsupported
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.streams import StreamSpec

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="nowhere:1")


def world() -> Connections:
    def no_spark(_: object) -> None:
        raise AssertionError("Spark is not needed to say it")

    return Connections(no_spark, lambda error, what: AssertionError(what), lambda *_: None)  # type: ignore[arg-type, return-value]


def stream(**options: object) -> StreamSpec:
    declared: dict[str, object] = {"source": KAFKA, "source_query": "events", **options}
    return stream_spec(None, name="s", **declared)  # type: ignore[arg-type]


def shown(spec: StreamSpec) -> StreamPlan:
    plan = StreamPlan(spec, None, "found in the first messages", (PayloadSpec("json"),))
    return dataclasses.replace(plan, expected=expected_targets(spec, world()))


def test_a_plan_without_columns_shows_each_target_with_mode_keys_and_guarantee(tmp_path) -> None:
    table = SQLiteConnection(name="warehouse", path=str(tmp_path / "w.sqlite"))
    plan = shown(stream(target=table, target_table="orders", mode="merge", keys=["id"]))
    text = str(plan)
    assert "merge     into warehouse:orders  (keys id)" in text
    assert "exactly_once: rows and the ledger entry of the batch commit together" in text
    assert "the table's columns come with the first messages" in text
    (told,) = plan.to_json()["targets"]
    assert (told["mode"], told["keys"], told["guarantee"]) == ("merge", ["id"], "exactly_once")


@pytest.mark.parametrize(("delivery", "kept"), [("auto", "at_least_once"), ("exactly_once", "exactly_once")])
def test_the_guarantee_follows_the_declared_delivery(delivery: str, kept: str) -> None:
    plan = shown(stream(target=KAFKA, target_topic="out", delivery=delivery))
    assert plan.expected[0].guarantee.value == kept
    assert "what a message holds comes with the first messages" in str(plan)


def test_a_promise_that_cannot_be_kept_is_refused_before_the_first_message(tmp_path) -> None:
    rabbit = RabbitMQConnection(name="rabbit", amqp_url="amqp://nowhere")
    table = SQLiteConnection(name="warehouse", path=str(tmp_path / "w.sqlite"))
    spec = stream(source=rabbit, source_query="q", target=table, target_table="t", delivery="exactly_once")
    with pytest.raises(GuaranteeRefused, match="cannot be kept"):
        expected_targets(spec, world())


def test_a_mode_that_the_target_has_not_is_refused_before_the_first_message(tmp_path) -> None:
    from ematix_flow import ObjectStoreLocalConnection

    files = ObjectStoreLocalConnection(name="files", path=str(tmp_path), format="parquet")
    spec = stream(target=files, target_prefix="t", mode="merge", keys=["id"])
    with pytest.raises(Unsupported, match="mode 'merge' cannot be used"):
        expected_targets(spec, world())
