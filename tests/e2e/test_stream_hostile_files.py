"""Hostile files under a stream: one stops it, nothing of the batch is loaded, and the stream can continue."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import BigInt, Integer, ManagedTable, String, pk
from ematix_flow.errors import DataLost, FlowError
from ematix_flow.spec.connections import ObjectStoreLocalConnection, SQLiteConnection
from tests.stream_runs import load, stream

pytestmark = pytest.mark.usefixtures("spark")


class Orders(ManagedTable):
    __tablename__ = "orders"
    id: Annotated[BigInt, pk()]
    whole: Integer | None
    short: String(5) | None


HOSTILE = {  # the rest of a line after its id, and a word of the error
    "no JSON": ("json", b', "whole": \n', "is not JSON"),
    "no integer": ("json", b', "whole": "x"}\n', "b.json"),
    "too long": ("json", b', "short": "abcdefgh"}\n', "longer than the 5 characters"),
    "no UTF-8": ("json", b', "short": "\xff"}\n', "is not UTF-8"),
    "refused by the target": ("json", b', "whole": 77}\n', "no 77 here"),
    "no integer in a cell": ("csv", b",x,b\n", "b.csv"),
    "too many cells": ("csv", b",1,b,c,d\n", "does not have as many cells"),
    "an open quote": ("csv", b',1,"b\n', "b.csv"),
}
EVERY_RUN = ("no JSON", "refused by the target")


def content(form: str, number: int, rest: bytes = b"") -> bytes:
    if form == "csv":
        return b"id,whole,short\n%d" % number + (rest or b",1,a\n")
    return b'{"id": %d' % number + (rest or b', "whole": 1}\n')


@pytest.mark.parametrize(
    "case", [case if case in EVERY_RUN else pytest.param(case, marks=pytest.mark.long) for case in HOSTILE]
)
def test_a_hostile_file_stops_the_stream_until_it_is_fixed_or_moved_away(case: str, tmp_path: Path) -> None:
    form, rest, word = HOSTILE[case]
    folder, database = tmp_path / "in" / "orders", tmp_path / "w.db"
    folder.mkdir(parents=True)

    def load_files(**options: bool) -> int:
        followed = stream(
            source=ObjectStoreLocalConnection(name="files", path=str(tmp_path / "in"), format=form),
            source_query="orders",
            source_columns=Orders,
            target=SQLiteConnection(name="lite", path=str(database)),
            target_table="events",
            **options,
        )
        return load(followed).total_rows

    def arrived() -> list[int]:
        with sqlite3.connect(database) as opened:
            return [row[0] for row in opened.execute("SELECT id FROM events ORDER BY id")]

    (folder / f"a.{form}").write_bytes(content(form, 1))
    assert load_files() == 1
    with sqlite3.connect(database) as opened:
        opened.execute(
            "CREATE TRIGGER refusing BEFORE INSERT ON events WHEN NEW.whole = 77 "
            "BEGIN SELECT RAISE(ABORT, 'no 77 here'); END"
        )
    for name, number in (("b", 2), ("c", 3)):  # one is moved away, then the other is fixed
        bad = folder / f"{name}.{form}"
        bad.write_bytes(content(form, number, rest))
        (folder / f"good-{name}.{form}").write_bytes(content(form, number * 10))
        with pytest.raises(FlowError, match=word.replace("b.", f"{name}.")):
            load_files()
        assert arrived() == ([1] if name == "b" else [1, 20])
        if name == "b":
            bad.unlink()
            with pytest.raises(DataLost, match="no longer exists") as lost:
                load_files()
            assert "fail_on_data_loss=False" in str(lost.value)
            assert load_files(fail_on_data_loss=False) == 1
        else:
            bad.write_bytes(content(form, number))
            assert load_files() == 2
    assert arrived() == [1, 3, 20, 30]
    assert load_files() == 0
