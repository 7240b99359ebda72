"""Files that come into a folder on a disk, received one by one."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ematix_flow.backends.messages.base import Message, ReadRequest, Receiver
from ematix_flow.backends.objectstore.reading import receiver as following
from ematix_flow.backends.objectstore.stream import FilesStream
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import DeclarationError, SourceFailed
from ematix_flow.spec.connections import ObjectStoreLocalConnection

AT_ONCE = {"poll_seconds": "0", "settle_seconds": "0"}
OLD = 1_700_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    (folder / "raw" / "orders").mkdir(parents=True)
    return folder


def stream(root: Path, format: str = "csv") -> FilesStream:
    found = open_backend(ObjectStoreLocalConnection(name="lake", path=str(root), format=format))
    source = found.stream_source()
    assert isinstance(source, FilesStream)
    return source


def receive(root: Path, progress: Mapping[str, str] | None = None, **more: object) -> Receiver:
    options = {**AT_ONCE, **{key: str(value) for key, value in more.pop("options", {}).items()}}  # type: ignore[attr-defined]
    reading = ReadRequest("raw/orders/", options=options, **more)  # type: ignore[arg-type]
    return stream(root).receiver(reading, progress or {})


def put(root: Path, name: str, text: str = "id\n1\n", at: float = OLD) -> Path:
    path = root / "raw" / "orders" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def names(messages: object) -> list[str]:
    assert isinstance(messages, list | tuple)
    return [message.value.decode().removeprefix("raw/orders/") for message in messages]


# ------------------------------------------------------------------ new files


def test_each_file_is_a_message_with_its_path_and_when_it_was_written(root: Path) -> None:
    put(root, "a.csv")
    receiver = receive(root)
    (message,) = receiver.poll(10, 0)
    version = f"5-{OLD}000000000"
    assert message == Message(
        value=b"raw/orders/a.csv",
        topic="raw/orders/",
        position=f"raw/orders/a.csv|{version}",
        timestamp=dt.datetime.fromtimestamp(OLD, dt.timezone.utc),
    )
    assert receiver.progress() == {"raw/orders/a.csv": version}
    assert receiver.poll(10, 0) == ()
    assert receiver.progress() == {}


def test_a_file_is_new_in_any_order_of_names(root: Path) -> None:
    put(root, "m.csv")
    receiver = receive(root)
    assert names(receiver.poll(10, 0)) == ["m.csv"]
    put(root, "a.csv", at=OLD - 1_000)
    put(root, "z.csv", at=OLD - 1_000)
    assert names(receiver.poll(10, 0)) == ["a.csv", "z.csv"]


def test_files_come_in_the_order_in_which_they_were_written_then_by_name(root: Path) -> None:
    put(root, "c.csv", at=OLD)
    put(root, "b.csv", at=OLD + 1)
    put(root, "a.csv", at=OLD + 1)
    receiver = receive(root)
    assert names(receiver.poll(2, 0)) == ["c.csv", "a.csv"]
    assert receiver.progress().keys() == {"raw/orders/c.csv", "raw/orders/a.csv"}
    assert receiver.lag() == {"raw/orders/": 1}
    assert receiver.is_drained() is False
    assert names(receiver.poll(2, 0)) == ["b.csv"]
    assert receiver.is_drained() is True


def test_what_was_stored_does_not_come_again_after_a_restart(root: Path) -> None:
    put(root, "a.csv")
    put(root, "b.csv", at=OLD + 1)
    first = receive(root)
    first.poll(1, 0)
    stored = dict(first.progress())
    first.poll(1, 0)  # was never stored
    first.close()
    assert names(receive(root, stored).poll(10, 0)) == ["b.csv"]


def test_one_poll_brings_no_more_than_the_option_allows(root: Path) -> None:
    for number in range(5):
        put(root, f"{number}.csv")
    receiver = receive(root, options={"max_files": 2})
    assert [len(receiver.poll(100, 0)) for _ in range(4)] == [2, 2, 1, 0]


def test_more_files_than_are_held_come_all_of_them_once_and_in_order(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_MAX_WAITING", 7)
    for number in range(50):
        put(root, f"{(number * 13) % 50:03}.csv", at=OLD + number)
    receiver = receive(root)
    found: list[str] = []
    while not receiver.is_drained():
        found += names(receiver.poll(3, 0))
    assert found == [f"{(number * 13) % 50:03}.csv" for number in range(50)]


def test_names_with_spaces_other_scripts_and_partitions_are_received_as_they_are(root: Path) -> None:
    given = [
        "two words.csv",
        "naïve größe 日本.csv",
        "day=2026-01-01/a=b.csv",
        "100%|#?[x]*.csv",
        "t 10:00:00.csv",
    ]
    for name in given:
        put(root, name)
    assert sorted(names(receive(root).poll(10, 0))) == sorted(given)


def test_folders_of_dates_belong_to_it_and_other_folders_only_when_asked(root: Path) -> None:
    put(root, "2026/11/15/a.csv")
    put(root, "device-7/b.csv")
    assert names(receive(root).poll(10, 0)) == ["2026/11/15/a.csv"]
    found = names(receive(root, options={"recursive": "true"}).poll(10, 0))
    assert found == ["2026/11/15/a.csv", "device-7/b.csv"]


def test_a_link_that_leads_round_in_a_circle_ends(root: Path) -> None:
    put(root, "a.csv")
    (root / "raw" / "orders" / "again").symlink_to(root / "raw" / "orders")
    assert names(receive(root, options={"recursive": "true"}).poll(10, 0)) == ["a.csv"]


# ------------------------------------------------------------------ what is not complete


def test_hidden_and_temporary_names_are_passed_over(root: Path) -> None:
    for name in (
        ".hidden.csv",
        "_SUCCESS",
        "_temporary/0/a.csv",
        "a.csv.tmp",
        "a.csv.crc",
        "b.CSV.TMP",
        "c.csv._COPYING_",
        "d.csv.filepart",
        ".ematix_flow/tables/x.csv",
    ):
        put(root, name)
    receiver = receive(root, options={"recursive": "true"})
    assert receiver.poll(10, 0) == ()
    (root / "raw" / "orders" / "a.csv.tmp").rename(root / "raw" / "orders" / "a.csv")
    assert names(receiver.poll(10, 0)) == ["a.csv"]


def test_a_file_that_is_still_written_waits_until_it_has_rested(root: Path) -> None:
    path = put(root, "half.csv", "id\n", at=time.time())
    receiver = receive(root, options={"settle_seconds": 3600})
    assert receiver.poll(10, 0) == ()
    assert receiver.lag() == {"raw/orders/": 1}
    assert receiver.is_drained() is False
    path.write_text("id\n1\n")
    assert receiver.poll(10, 0) == ()
    assert receiver.is_drained() is True  # another process changed it after the first listing
    os.utime(path, (OLD, OLD))
    (message,) = receiver.poll(10, 0)
    assert message.position == f"raw/orders/half.csv|5-{OLD}000000000"


def test_a_file_from_a_clock_that_is_ahead_is_taken_once_it_looks_the_same_for_long_enough(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1_000.0
    monkeypatch.setattr(following.time, "monotonic", lambda: clock)
    put(root, "a.csv", at=time.time() + 86_400)
    receiver = receive(root, options={"settle_seconds": 5})
    assert receiver.poll(10, 0) == ()
    clock += 4
    assert receiver.poll(10, 0) == ()
    put(root, "a.csv", "id\n1\n2\n", at=time.time() + 86_400)
    clock += 4
    assert receiver.poll(10, 0) == ()
    clock += 5
    assert names(receiver.poll(10, 0)) == ["a.csv"]


def test_a_file_that_changes_after_it_was_received_is_named_once_and_not_read_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root, "a.csv")
    receiver = receive(root)
    receiver.poll(10, 0)
    put(root, "a.csv", "id\n1\n2\n")
    with caplog.at_level(logging.WARNING):
        assert receiver.poll(10, 0) == ()
        put(root, "a.csv", "id\n1\n2\n3\n")
        assert receiver.poll(10, 0) == ()
    assert len(caplog.messages) == 1
    assert "raw/orders/a.csv" in caplog.messages[0]
    assert "reread_changed" in caplog.messages[0]


def test_a_changed_file_is_read_again_when_that_is_asked_for(root: Path) -> None:
    put(root, "a.csv")
    receiver = receive(root, options={"reread_changed": "true"})
    receiver.poll(10, 0)
    put(root, "a.csv", "id\n1\n2\n")
    (message,) = receiver.poll(10, 0)
    assert message.position == f"raw/orders/a.csv|7-{OLD}000000000"
    assert receiver.progress() == {"raw/orders/a.csv": f"7-{OLD}000000000"}
    assert receiver.poll(10, 0) == ()


def test_a_name_that_is_no_text_is_named_once_and_does_not_hold_up_the_others(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(root, "b.csv")
    odd = os.fsencode(root / "raw" / "orders") + b"/f\xfcr.csv"
    with open(odd, "w") as file:
        file.write("id\n1\n")
    os.utime(odd, (OLD, OLD))
    receiver = receive(root)
    assert names(receiver.poll(10, 0)) == ["b.csv"]
    receiver.poll(10, 0)
    assert len(caplog.messages) == 1
    assert "not UTF-8" in caplog.messages[0]


# ------------------------------------------------------------------ where it starts


def test_latest_passes_over_what_is_there_also_after_a_restart(root: Path) -> None:
    put(root, "old.csv")
    receiver = receive(root, starting="latest")
    assert receiver.poll(10, 0) == ()
    assert receiver.is_drained() is True
    stored = dict(receiver.progress())
    assert "raw/orders/old.csv" in stored
    put(root, "older than that.csv", at=OLD - 50)
    assert names(receiver.poll(10, 0)) == ["older than that.csv"]
    assert receiver.progress().keys() == {"raw/orders/older than that.csv"}
    stored |= receiver.progress()
    put(root, "while we were away.csv")
    again = receive(root, stored, starting="latest")
    assert names(again.poll(10, 0)) == ["while we were away.csv"]


def test_latest_in_an_empty_folder_is_remembered(root: Path) -> None:
    receiver = receive(root, starting="latest")
    assert receiver.poll(10, 0) == ()
    put(root, "while we were away.csv")
    again = receive(root, receiver.progress(), starting="latest")
    assert names(again.poll(10, 0)) == ["while we were away.csv"]


def test_a_moment_passes_over_what_was_written_before_it(root: Path) -> None:
    put(root, "before.csv", at=OLD - 1)
    put(root, "at.csv", at=OLD)
    moment = dt.datetime.fromtimestamp(OLD, dt.timezone.utc)
    receiver = receive(root, starting=moment)
    assert names(receiver.poll(10, 0)) == ["at.csv"]
    assert receive(root, receiver.progress(), starting=moment).poll(10, 0) == ()


# ------------------------------------------------------------------ many files, much time


def test_thousands_of_files_come_once_each(root: Path) -> None:
    wanted = {f"{number:05}.csv" for number in range(5_000)}
    for name in wanted:
        (root / "raw" / "orders" / name).touch()
    receiver = receive(root)
    found: list[str] = []
    while not receiver.is_drained():
        found += names(receiver.poll(1_000, 0))
    assert len(found) == len(wanted)
    assert set(found) == wanted


def test_a_folder_is_not_listed_more_often_than_the_option_says(root: Path) -> None:
    receiver = receive(root, options={"poll_seconds": 3600})
    assert receiver.poll(10, 0) == ()
    put(root, "a.csv")
    assert receiver.poll(10, 0.05) == ()


def test_a_poll_waits_for_the_first_file(root: Path) -> None:
    import threading

    receiver = receive(root)
    later = threading.Timer(0.1, put, (root, "a.csv"))
    later.start()
    assert names(receiver.poll(10, 60)) == ["a.csv"]
    later.join()


def test_closing_ends_a_poll_that_waits(root: Path) -> None:
    import threading

    receiver = receive(root)
    closing = threading.Timer(0.1, receiver.close)
    closing.start()
    assert receiver.poll(10, 60) == ()
    closing.join()


# ------------------------------------------------------------------ what cannot be followed


def test_a_folder_that_is_not_there_is_reported_with_the_one_that_may_be_meant(root: Path) -> None:
    put(root, "a.csv")
    with pytest.raises(SourceFailed, match=r"there is no folder .*raw/ordres\. Did you mean 'raw/orders'"):
        stream(root).check(ReadRequest("raw/ordres/"))
    with pytest.raises(SourceFailed, match=r"cannot read .*ordres"):
        stream(root).receiver(ReadRequest("raw/ordres/"), {}).poll(1, 0)
    stream(root).check(ReadRequest("raw/orders/"))
    stream(root).check(ReadRequest("/"))


@pytest.mark.parametrize("query", ["../else", "raw/../../else", ".ematix_flow/tables", "raw//orders", "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(root: Path, query: str) -> None:
    with pytest.raises(SourceFailed, match="cannot be a folder of files"):
        stream(root).check(ReadRequest(query))


def test_a_file_a_lake_and_a_root_that_is_not_there_are_reported(root: Path, tmp_path: Path) -> None:
    put(root, "a.csv")
    with pytest.raises(SourceFailed, match="is a file"):
        stream(root).check(ReadRequest("raw/orders/a.csv"))
    (root / "lake" / "_delta_log").mkdir(parents=True)
    with pytest.raises(SourceFailed, match="is a Delta table"):
        stream(root).check(ReadRequest("lake"))
    with pytest.raises(SourceFailed, match="does not exist"):
        stream(tmp_path / "nowhere").check(ReadRequest("raw"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"settle_second": "1"}, "no option 'settle_second'. Did you mean 'settle_seconds'"),
        ({"settle_seconds": "soon"}, "number of seconds, 0 or more, not 'soon'"),
        ({"settle_seconds": "-1"}, "number of seconds, 0 or more"),
        ({"settle_seconds": "nan"}, "number of seconds, 0 or more"),
        ({"max_files": "0"}, "whole number, 1 or more, not '0'"),
        ({"reread_changed": "maybe"}, "true or false, not 'maybe'"),
        ({"max_files": "1", "maxFiles": "2"}, "given twice"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(root: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        stream(root).check(ReadRequest("raw/orders", options=options))


def test_files_without_the_right_to_read_the_folder_are_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    receiver = receive(root)
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SourceFailed, match="Permission denied") as told:
        receiver.poll(1, 0)
    assert "right to read" in str(told.value)
    monkeypatch.undo()
    put(root, "a.csv")
    assert names(receiver.poll(10, 0)) == ["a.csv"]
