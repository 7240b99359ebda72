"""``quarantine=ematix.DEAD_LETTERS``: where it can be declared, and what a file says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    Aggregation,
    BigInt,
    DeltaLocalConnection,
    KafkaConnection,
    PostgresConnection,
    RabbitMQConnection,
    SQLiteConnection,
    Target,
    Window,
    ematix,
    pk,
)
from ematix_flow.api.stream_toml import stream_from_text
from ematix_flow.api.stream_toml_writer import stream_to_toml
from ematix_flow.api.streaming import stream_spec
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.run.quarantine import Quarantine
from ematix_flow.spec.streams import StreamSpec

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
WAREHOUSE = PostgresConnection(name="warehouse", url="postgres://localhost/db")
RABBIT = RabbitMQConnection(name="rabbit", amqp_url="amqp://localhost")
DELTA = DeltaLocalConnection(name="delta", path="lake")


def declare(**options: Any) -> StreamSpec:
    right = {
        "name": "events",
        "source": KAFKA,
        "source_query": "events",
        "target": WAREHOUSE,
        "target_table": ("public", "events"),
        "transform_on_error": "dlq",
        "expectations": [ematix.expect_or_drop("positive", "id > 0")],
        "quarantine": ematix.DEAD_LETTERS,
    }
    return stream_spec(None, **{k: v for k, v in {**right, **options}.items() if v is not None})


def test_a_stream_of_messages_with_dead_letters_takes_it() -> None:
    spec = declare()
    assert (spec.expectations.to_dead_letters, spec.expectations.quarantine) == (True, None)
    assert StreamSpec.from_json(spec.to_json()) == spec


def test_text_is_always_the_name_of_a_table() -> None:
    spec = declare(quarantine="dead_letters")
    assert (spec.expectations.to_dead_letters, spec.expectations.quarantine) == (False, "dead_letters")


TWO = [Target(connection=WAREHOUSE, table=("public", name)) for name in ("a", "b")]
ONE_TABLE = "failing rows then go to the table <table>__quarantine"


@pytest.mark.parametrize(
    ("options", "why", "instead"),
    [
        ({"transform_on_error": None}, "the stream has no dead letters", "transform_on_error='dlq'"),
        ({"transform_on_error": "drop"}, "the stream has no dead letters", "transform_on_error='dlq'"),
        ({"transform_sql": "SELECT id FROM source"}, "several messages, or from none", ONE_TABLE),
        ({"mode": "merge", "keys": ["id"]}, "would replace a newer row", ONE_TABLE),
        ({"source": DELTA, "transform_on_error": None}, "delta_local brings rows, not messages", ONE_TABLE),
        ({"source": RABBIT, "dlq_store": "broker"}, "hands a message back to the broker", "dlq_store="),
        (
            {"targets": TWO, "target": None, "target_table": None},
            "would be in the others already",
            "continue_on_target_failure=True",
        ),
        (
            {
                "window": Window("tumbling", [Aggregation("count", "n")], duration_ms=1000),
            },
            "a row of a window comes from several messages",
            ONE_TABLE,
        ),
    ],
)  # fmt: skip
def test_rows_that_are_not_those_of_one_message_are_refused(
    options: dict[str, Any], why: str, instead: str
) -> None:
    with pytest.raises(DeclarationError) as refused:
        declare(**options)
    assert refused.value.what.startswith("quarantine=ematix.DEAD_LETTERS cannot put failing rows aside here")
    assert why in refused.value.what
    assert instead in (refused.value.next_step or "")


def test_targets_that_move_by_themselves_can_have_dead_letters() -> None:
    declare(targets=TWO, target=None, target_table=None, continue_on_target_failure=True)


def test_a_stream_without_rules_that_set_rows_aside_is_refused() -> None:
    with pytest.raises(DeclarationError, match="no expectation sets rows aside"):
        declare(expectations=[ematix.expect("positive", "id > 0")])
    with pytest.raises(DeclarationError, match="quarantine= works with expectations="):
        declare(expectations=None)


def test_a_pipeline_of_rows_is_refused(tmp_path: Path) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))

    @ematix.table
    class Orders:
        id: Annotated[BigInt, pk()]

    with pytest.raises(DeclarationError, match="is for streams of messages, and this pipeline reads rows"):

        @ematix.pipeline(
            target=Orders, source_connection=lite, target_connection=lite, quarantine=ematix.DEAD_LETTERS
        )
        @ematix.expect_or_drop("positive", "id > 0")
        def orders() -> str:
            return "SELECT id FROM incoming"


def test_a_file_declares_it_as_a_table() -> None:
    written = stream_to_toml(declare())
    assert "[quarantine]\ndead_letters = true\n" in written
    assert stream_from_text(written).expectations == declare().expectations
    rest = written.replace("[quarantine]\ndead_letters = true\n", "")
    inline = stream_from_text("quarantine = { dead_letters = true }\n" + rest)
    assert inline.expectations == declare().expectations
    with pytest.raises(DeclarationError) as refused:
        stream_from_text("quarantine = { dead_letters = false }\n" + rest)
    assert refused.value.next_step == "write  quarantine = { dead_letters = true }"
    with pytest.raises(DeclarationError, match="reads like dead letters") as refused:
        stream_from_text('quarantine = "DEAD_LETTERS"\n' + rest)
    assert refused.value.next_step == "write  quarantine = { dead_letters = true }"


def test_the_commands_about_quarantine_tables_name_those_about_dead_letters() -> None:
    with pytest.raises(UsageError, match="as dead letters, not in a table") as refused:
        Quarantine(declare(), lambda: None)  # type: ignore[arg-type,return-value]
    assert "flow dlq list --pipeline events" in (refused.value.next_step or "")
