"""``flow dlq``: looking at dead letters, and replaying, parking and purging them."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence

import pytest

from ematix_flow.backends.state_stores.dead_letters import open_dead_letters
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from ematix_flow.streams import dead_letter_replay as replaying

STREAMS = """
from ematix_flow.graph.registry import DeclaredStream, current_registry
from ematix_flow.spec.streams import DeadLetterSpec, StreamSpec

for name, table in (("orders", None), ("returns", "rejected")):
    spec = StreamSpec(name, sources=(), targets=(), dead_letters=DeadLetterSpec(table=table))
    current_registry().add_stream(DeclaredStream(spec, None))
"""


@pytest.fixture
def streams(tmp_path):
    (tmp_path / "streams.py").write_text(STREAMS, encoding="utf-8")


def keep(count: int = 1, pipeline: str = "orders", table: str | None = None, **given) -> list[str]:
    """Letters as a stream would have left them; their ids."""
    letters = [
        DeadLetter.create(
            pipeline,
            **{
                "stage": "decode",
                "reason": "not JSON",
                "payload": b"{",
                "source": "events",
                "partition": "3",
                "position": str(number),
                **given,
            },
        )
        for number in range(count)
    ]
    with open_dead_letters(env=os.environ, table=table) as store:
        store.add(letters)
    return [letter.id for letter in letters]


def listed(flow, *options: str) -> list[tuple[str, str]]:
    return [(each["position"], each["status"]) for each in flow("dlq", "list", *options, "-o", "json").json]


# ------------------------------------------------------------------ looking


def test_letters_are_listed_oldest_first_with_how_many_there_are(flow):
    first, second = keep(2)
    shown = flow("dlq", "list")
    header, one, two = shown.out.splitlines()
    assert header.startswith("id            pipeline  stage   status   attempt  failed (")
    assert one.startswith(f"{first[:12]}  orders    decode  pending        1  ")
    assert one.endswith("events/3/0  not JSON")
    assert two.startswith(second[:12])
    assert "2 in sqlite://" in shown.err
    assert "2 pending" in shown.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["0", "1", "2", "0"]),
        (["--pipeline", "returns"], ["0"]),
        (["--stage", "write"], ["0"]),
        (["--limit", "1", "--offset", "1"], ["1"]),
        (["--status", "parked"], []),
    ],
)
def test_letters_can_be_narrowed_down(flow, options, expected):
    keep(3)
    keep(1, "returns", stage="write")
    assert [position for position, _ in listed(flow, *options)] == expected


def test_no_letter_says_where_it_looked(flow):
    shown = flow("dlq", "list")
    assert shown.code == 0
    assert shown.err.startswith("no dead letters in sqlite://")


def test_a_choice_that_no_letter_fits_says_how_many_there_are(flow):
    keep(3)
    assert flow("dlq", "list", "--status", "parked").err.startswith("no such dead letter among the 3 in ")


def test_a_list_that_ends_at_its_limit_says_how_many_there_are(flow):
    keep(7)
    assert "3 of 7; --limit shows more" in flow("dlq", "list", "--limit", "3").err
    assert "3 of 7; --limit shows more" in flow("dlq", "list", "--limit", "3", "-o", "json").err
    assert "--limit" not in flow("dlq", "list", "--limit", "7").err
    assert "--limit" not in flow("dlq", "list", "--limit", "3", "--offset", "4").err
    assert "--limit" not in flow("dlq", "list", "--limit", "3", "--status", "parked").err


@pytest.mark.parametrize("command", [["list"], ["park", "--all"], ["purge", "--all"]])
def test_a_stream_without_letters_is_reported_with_the_one_that_was_meant(flow, command):
    keep(2)
    told = flow("dlq", *command, "--pipeline", "ordrs")
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith("there are no dead letters of 'ordrs' in sqlite://")
    assert "Did you mean 'orders'?" in told.err


def test_a_store_that_is_none_is_an_error_at_its_option(flow):
    failed = flow("dlq", "purge", "--all", "--store", "foo://x")
    assert failed.code == 2
    assert "where: --store\n" in failed.err and "next:" in failed.err


def test_a_module_that_is_not_there_is_an_error_in_every_command(flow):
    keep(1)
    for command in (["list"], ["list", "-p", "orders"], ["park", "--all", "-p", "orders"]):
        failed = flow("dlq", *command, "--module", "nosuch")
        assert failed.code != 0
        assert "nosuch" in failed.err


def test_a_letter_is_shown_with_its_payload_as_text(flow):
    (id,) = keep(payload=b'{"a": "\xc3\xa9"', key=b"k1", headers='{"x": "y"}')
    shown = flow("dlq", "show", id[:6]).out
    assert f"id        {id}" in shown
    assert "position  events/3/0" in shown
    assert "key       k1" in shown
    assert "payload   10 bytes, json" in shown
    assert shown.endswith('\n\n{"a": "é"\n')
    told = flow("dlq", "show", id, "-o", "json").json
    assert (told["payload"], told["key"]) == ({"text": '{"a": "é"'}, {"text": "k1"})


def test_a_payload_that_is_no_text_is_shown_as_hex_and_not_all_of_it(flow):
    (id,) = keep(payload=b"\x00\xffabc" + b"x" * 100)
    shown = flow("dlq", "show", id, "--bytes", "5")
    assert shown.out.endswith("000000  00 ff 61 62 63                                   ..abc\n")
    assert "--bytes 105" in shown.err
    told = flow("dlq", "show", id, "--bytes", "5", "-o", "json").json
    assert (told["payload"], told["payload_shown"]) == ({"hex": "00ff616263"}, 5)


def test_text_that_is_cut_within_a_letter_is_still_text(flow):
    (id,) = keep(payload="aé".encode())
    assert flow("dlq", "show", id, "--bytes", "2").out.endswith("\na\n")


def test_a_terminal_obeys_no_letter(flow):
    (id,) = keep(payload=b"\x1b[2J\x07", reason="\x1b]0;owned\x07", position="\x1b[31m")
    for shown in (flow("dlq", "list").out, flow("dlq", "show", id).out):
        assert "\x1b" not in shown
        assert "\\x1b" in shown


def test_a_letter_that_is_not_there_is_a_usage_error(flow):
    failed = flow("dlq", "show", "feed")
    assert failed.code == 2
    assert "next:  flow dlq list" in failed.err


# ------------------------------------------------------------------ parking and purging


def test_chosen_letters_are_parked(flow):
    ids = keep(3)
    assert flow("dlq", "park", ids[2][:10]).out == "1 dead letter of orders parked\n"
    assert flow("dlq", "park", "--first", "1", "-p", "orders", "-o", "json").json == {
        "pipeline": "orders",
        "parked": 1,
    }
    assert listed(flow) == [("0", "parked"), ("1", "pending"), ("2", "parked")]


def test_letters_are_chosen_by_stage_and_reason(flow):
    keep(2)
    keep(1, stage="write", reason="too long")
    assert flow("dlq", "park", "--all", "-p", "orders", "--reason", "TOO", "--stage", "write").code == 0
    assert [status for _, status in listed(flow)] == ["pending", "pending", "parked"]


def test_purging_asks_and_nobody_there_is_no_yes(flow):
    keep(2)
    failed = flow("dlq", "purge", "--all", "--pipeline", "orders")
    assert failed.code == 2
    assert "next:  give --yes" in failed.err
    assert len(listed(flow)) == 2
    assert flow("dlq", "purge", "--all", "--pipeline", "orders", "--yes").code == 0
    assert listed(flow) == []


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
def test_purging_does_what_was_answered(flow, monkeypatch, answer, left):
    keep()
    monkeypatch.setattr("ematix_flow.cli.commands.dlq.is_terminal", lambda stream: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: answer == "y\n")
    flow("dlq", "purge", "--first", "1", "-p", "orders")
    assert len(listed(flow)) == left


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no dead letters are chosen"),
        (["--all", "--first", "2"], "several ways"),
        (["--all"], "no stream is given"),
        (["abc", "--all"], "several ways"),
        (["abc"], "no dead letter 'abc'"),
    ],
)
def test_a_choice_that_makes_no_sense_is_a_usage_error(flow, options, said):
    failed = flow("dlq", "park", *options)
    assert failed.code == 2
    assert said in failed.err


def test_letters_of_several_streams_are_not_mixed(flow):
    ids = [*keep(), *keep(1, "returns")]
    failed = flow("dlq", "park", *ids)
    assert (failed.code, "several streams" in failed.err) == (2, True)


# ------------------------------------------------------------------ which store


def test_the_store_is_chosen_by_url_and_table(flow, tmp_path):
    with open_dead_letters(f"duckdb://{tmp_path}/dw.duckdb", env={}, table="shop.rejected") as store:
        store.add([DeadLetter.create("orders", "write", "x", payload=b"", position="9")])
    options = ("--store", f"duckdb://{tmp_path}/dw.duckdb", "--table", "shop.rejected")
    assert listed(flow, *options) == [("9", "pending")]
    assert listed(flow) == []


def test_letters_of_a_topic_are_shown_and_purged_without_its_kafka(flow, tmp_path):
    (tmp_path / "streams.py").write_text(
        "from ematix_flow import KafkaConnection\n"
        "from ematix_flow.api.streaming import stream_spec\n"
        "from ematix_flow.graph.registry import DeclaredStream, current_registry\n"
        "away = KafkaConnection(name='away', bootstrap_servers='127.0.0.1:9')\n"
        "spec = stream_spec(None, name='orders', source=away, source_query='in', target=away,\n"
        "                   target_topic='out', dead_letter_topic='letters')\n"
        "current_registry().add_stream(DeclaredStream(spec, None))\n",
        encoding="utf-8",
    )
    keep(2)
    assert listed(flow, "-p", "orders", "-m", "streams") == [("0", "pending"), ("1", "pending")]
    assert flow("dlq", "purge", "--all", "--yes", "-p", "orders", "-m", "streams").code == 0
    assert listed(flow, "-p", "orders", "-m", "streams") == []


def test_a_kafka_is_no_store(flow):
    failed = flow("dlq", "list", "--store", "kafka://127.0.0.1:9", "--table", "letters")
    assert (failed.code != 0, "which cannot store dead letters" in failed.err) == (True, True)
    assert "flow dlq list --pipeline NAME" in failed.err


def test_the_store_is_the_one_that_the_stream_declares(flow, streams):
    keep(1, "returns", "rejected")
    assert listed(flow, "-p", "returns") == []
    assert listed(flow, "-p", "returns", "-m", "streams") == [("0", "pending")]
    unknown = flow("dlq", "list", "-p", "return", "-m", "streams")
    assert (unknown.code, "Did you mean 'returns'?" in unknown.err) == (2, True)


@pytest.fixture
def configured(tmp_path, streams):
    """A project whose file names the module."""
    (tmp_path / ".ematix-flow.toml").write_text('[project]\nmodule = "streams"\n', encoding="utf-8")


def test_the_letters_of_every_declared_store_are_found_without_their_stream(flow, configured):
    (first,) = keep(1, "returns", "rejected", failed_at=dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))
    (second,) = keep(1, "orders", position="9")
    shown = flow("dlq", "list")
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [
        [first[:12], "returns"],
        [second[:12], "orders"],
    ]
    assert listed(flow, "--limit", "1", "--offset", "1") == [("9", "pending")]
    assert flow("dlq", "show", first).code == 0
    assert flow("dlq", "park", first[:12]).out == "1 dead letter of returns parked\n"
    assert flow("dlq", "purge", second[:12], "--yes").out == "1 dead letter of orders purged\n"
    assert listed(flow) == [("0", "parked")]


def test_each_database_is_looked_in_once_under_all_its_names(flow, tmp_path):
    connections = [f"SQLiteConnection(name={name!r}, path='{tmp_path}/dw.db')" for name in ("one", "two")]
    (tmp_path / "streams.py").write_text(
        "from ematix_flow import SQLiteConnection\n"
        + STREAMS.replace('("orders", None)', f'("orders", {connections[0]})')
        .replace('("returns", "rejected")', f'("returns", {connections[1]})')
        .replace("DeadLetterSpec(table=table)", "DeadLetterSpec(connection=table)"),
        encoding="utf-8",
    )
    with open_dead_letters(f"sqlite://{tmp_path}/dw.db", env={}) as store:
        store.add([DeadLetter.create("orders", "write", "x", payload=b"", position="9")])
    assert listed(flow, "-m", "streams") == [("9", "pending")]


def test_no_letter_in_any_store_says_where_it_looked(flow, configured):
    told = flow("dlq", "list").err
    assert told.startswith("no dead letters in sqlite://")
    assert told.count("dead_letters.db") == 2


def test_the_next_command_of_a_list_works_as_it_is(flow, streams):
    (id,) = keep(1, "returns", "rejected")
    for options in (["-m", "streams"], ["-m", "streams", "-p", "returns"], ["--table", "rejected"]):
        command, _, rest = flow("dlq", "list", *options).err.splitlines()[-1].partition("  ")
        assert rest == "shows the first of them"
        assert f"id        {id}" in flow(*command.split()[1:]).out


def test_the_next_command_for_a_missing_letter_looks_in_the_same_stores(flow, streams):
    keep(1, "returns", "rejected")
    missing = flow("dlq", "show", "feed", "-m", "streams")
    assert (missing.code, "next:  flow dlq list --module streams" in missing.err) == (2, True)
    nameless = flow("dlq", "purge", "--all", "-m", "streams")
    assert "give --pipeline NAME;  flow dlq list --module streams  shows them" in nameless.err


def test_a_letter_that_is_in_two_stores_is_refused(flow, configured):
    (id,) = keep(1, "returns", "rejected")
    keep(1, "returns")
    refused = flow("dlq", "purge", id, "--yes")
    assert (refused.code, "are in several stores: sqlite://" in refused.err) == (2, True)
    assert flow("dlq", "purge", id, "--yes", "-p", "returns").code == 0
    assert len(listed(flow)) == 1


@pytest.mark.parametrize("command", [["list"], ["park", "--all"], ["purge", "--all"]])
def test_a_stream_that_is_not_declared_is_a_usage_error_with_the_one_that_was_meant(
    flow, configured, command
):
    keep(1, "returns", "rejected")
    failed = flow("dlq", *command, "--pipeline", "retrns")
    assert (failed.code, "Did you mean 'returns'?" in failed.err) == (2, True)


def test_letters_of_a_stream_that_is_no_longer_declared_stay_reachable(flow, configured):
    (id,) = keep(1, "gone", "rejected")
    assert listed(flow, "-p", "gone") == [("0", "pending")]
    assert flow("dlq", "show", id, "-p", "gone", "-m", "streams").code == 0
    keep(1, "gone", position="9")
    assert len(listed(flow, "-p", "gone")) == 2
    refused = flow("dlq", "purge", "--all", "--yes", "-p", "gone")
    assert (refused.code, "letters of 'gone' are in several stores" in refused.err) == (2, True)
    assert flow("dlq", "purge", "--all", "--yes", "-p", "gone", "--table", "rejected").code == 0
    assert flow("dlq", "purge", "--all", "--yes", "-p", "gone").code == 0
    assert listed(flow) == []


@pytest.mark.parametrize("url", ["ftp://x", "s3://bucket/x", "sqlite://:memory:", "no_such_connection"])
def test_a_store_that_cannot_be_is_an_error(flow, url):
    failed = flow("dlq", "list", "--store", url)
    assert failed.code in (1, 2)
    assert failed.err.startswith("error: ")


# ------------------------------------------------------------------ replaying


@pytest.fixture
def running(monkeypatch):
    """Letters whose position is odd fail again."""

    def run(letters: Sequence[DeadLetter], _: object) -> Mapping[str, str | None]:
        return {each.id: "still bad" if int(each.position or 0) % 2 else None for each in letters}

    monkeypatch.setattr(replaying, "letter_runner", lambda declared, watched: run)


def test_a_replay_tells_what_became_of_the_letters(flow, streams, running):
    keep(4)
    told = flow("dlq", "replay", "--all", "-p", "orders", "-m", "streams")
    assert told.code == 1
    assert told.out == "2 of 4 replayed, 2 failed again\n"
    (run,) = flow("runs", "list", "-p", "replay:orders", "-o", "json").json
    assert (run["status"], run["mode"], run["rows_read"], run["rows_inserted"]) == ("failed", "replay", 4, 2)
    assert told.err.count("still bad") == 2
    assert [status for _, status in listed(flow)] == ["replayed", "pending", "replayed", "pending"]
    again = flow("dlq", "replay", "--all", "-p", "orders", "-m", "streams", "-o", "json").json
    assert (again["taken"], again["failed"], again["parked"]) == (2, 2, 2)


def test_a_replay_of_named_letters_takes_them_alone(flow, streams, running):
    ids = keep(4)
    told = flow("dlq", "replay", ids[2], "-p", "orders", "-m", "streams")
    assert (told.code, told.out) == (0, "1 of 1 replayed, 0 failed again\n")


def test_a_replay_by_id_alone_parks_after_as_many_failures_as_the_stream_declares(
    flow, configured, running, tmp_path
):
    declared = STREAMS.replace("(table=table)", "(table=table, max_attempts=2 if table else 9)")
    (tmp_path / "streams.py").write_text(declared, encoding="utf-8")
    (id,) = keep(1, "orders", position="1")
    for _ in range(4):
        flow("dlq", "replay", id)
    assert listed(flow) == [("1", "pending")]


def test_a_replay_without_letters_is_no_failure(flow, streams, running):
    told = flow("dlq", "replay", "--all", "-p", "orders", "-m", "streams")
    assert (told.code, told.err) == (0, "no dead letter of 'orders' to replay\n")


def test_the_choice_in_the_store_is_the_same_as_in_the_command():
    assert LetterSelection(first=1).replayable_statuses() == ("pending",)
    assert LetterSelection(ids=("a",)).replayable_statuses() == ("pending", "parked")
