"""Dead letters as values, and their file: sudden death, old and broken files."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from ematix_flow.backends.state_stores.dead_letters import open_dead_letters
from ematix_flow.errors import ConfigError, TargetFailed, UsageError
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection, letter_id
from ematix_flow.state.dead_letters.sql import open_dead_letter_file
from ematix_flow.state.dead_letters.tables import UPGRADES, letter_tables, migrate

# adds letters and dies at the nth statement that writes
CHILD = """
import os, signal, sys
import sqlalchemy as sa
from pathlib import Path
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from ematix_flow.state.dead_letters.sql import open_dead_letter_file
path, work, fatal = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = open_dead_letter_file(path)
seen = 0
def count(connection, cursor, statement, *_):
    global seen
    seen += statement.split()[0] in ("INSERT", "UPDATE", "DELETE")
    if seen == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
sa.event.listen(store._engine, "after_cursor_execute", count)
if work == "add":
    made = (DeadLetter.create("orders", "decode", "x", payload=b"x", position=str(n)) for n in range(1200))
    store.add(list(made))
elif work == "take":
    store.lease("orders", LetterSelection(all=True), lease_seconds=60, limit=5)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    store.purge("orders", LetterSelection(all=True))
"""


def letters(count: int) -> list[DeadLetter]:
    return [DeadLetter.create("orders", "decode", "x", payload=b"x", position=str(n)) for n in range(count)]


def died(path: Path, work: str, fatal: int) -> None:
    process = subprocess.run([sys.executable, "-c", CHILD, path, work, str(fatal)], check=False, timeout=120)
    assert process.returncode == -signal.SIGKILL


# ------------------------------------------------------------------ values


def test_the_same_failure_has_the_same_id_and_another_has_another() -> None:
    def id_of(**given: object) -> str:
        values = {"source": "t", "partition": "0", "position": "7", **given}
        return letter_id("orders", str(values.pop("stage", "decode")), **values)  # type: ignore[arg-type]

    assert id_of() == id_of(payload=b"something else")
    different = [
        id_of(),
        id_of(position="8"),
        id_of(partition="1"),
        id_of(source="u"),
        id_of(stage="write"),
        id_of(target="dw:a"),
        id_of(ordinal=1),
        id_of(position=None, payload=b"a"),
        id_of(position=None, payload=b"b"),
        id_of(source="t/0", partition=None),
    ]
    assert len(set(different)) == len(different)
    assert all(len(id) == 32 for id in different)


def test_the_reason_shows_no_secret_and_is_cut_at_eight_kibibytes() -> None:
    letter = DeadLetter.create("p", "write", ConnectionError("no postgres://ann:hunter22@db/x"), payload=b"")
    assert letter.reason == "ConnectionError: no postgres://ann:***@db/x"
    long = replace(letter, reason="é" * 10_000)
    assert len(long.reason.encode()) <= 8192
    assert long.reason.endswith("é…")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"pipeline": ""},
        {"stage": "nowhere"},
        {"status": "lost"},
        {"attempt": 0},
        {"failed_at": dt.datetime(2026, 1, 1)},
    ],
)
def test_a_letter_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(letters(1)[0], **wrong)  # type: ignore[arg-type]


def test_nothing_is_chosen_by_accident() -> None:
    with pytest.raises(UsageError, match="no dead letters are chosen"):
        LetterSelection()
    with pytest.raises(UsageError, match="chooses no dead letter"):
        LetterSelection(first=0)
    with pytest.raises(ValueError, match="stage"):
        LetterSelection(stage="nowhere")  # type: ignore[arg-type]
    assert LetterSelection(ids=()).ids == ()


# ------------------------------------------------------------------ the file


def test_the_default_file_is_made_at_first_use_for_this_user_alone(tmp_path: Path) -> None:
    with open_dead_letters(env={"HOME": str(tmp_path)}) as store:
        store.add(letters(1))
    root = tmp_path / ".ematix-flow"
    assert (root / "dead_letters.db").is_file()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_sudden_death_while_adding_leaves_whole_portions_and_adding_again_the_rest(
    tmp_path: Path, fatal: int
) -> None:
    path = tmp_path / "letters.db"
    died(path, "add", fatal)
    with open_dead_letter_file(path) as store:
        left = len(store.list(limit=2000))
        assert left == (fatal - 1) * 500
        assert store.add(letters(1200)) == 1200 - left
        assert len(store.list(limit=2000)) == 1200


def test_sudden_death_during_a_replay_leaves_the_letters_to_the_next_when_the_lease_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "letters.db"
    now = dt.datetime.now(dt.timezone.utc)
    with open_dead_letter_file(path) as store:
        store.add(letters(7))
        died(path, "take", 99)
        assert len(store.lease("orders", LetterSelection(all=True)).letters) == 2
        store._clock = lambda: now + dt.timedelta(seconds=120)  # type: ignore[attr-defined]
        assert len(store.lease("orders", LetterSelection(all=True)).letters) == 5


def test_sudden_death_while_purging_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    with open_dead_letter_file(path) as store:
        store.add(letters(1200))
        died(path, "purge", 2)
        assert len(store.list(limit=2000)) == 700
        assert store.purge("orders", LetterSelection(all=True)) == 700


def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    open_dead_letter_file(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE dead_letters_version SET version = 9")
    with pytest.raises(ConfigError, match="have version 9; this ematix-flow knows up to 3"):
        open_dead_letter_file(path)


def test_an_older_store_is_upgraded_step_by_step() -> None:
    def add_column(connection: sa.Connection, tables: object) -> None:
        connection.execute(sa.text("ALTER TABLE dead_letters ADD COLUMN later TEXT"))

    tables = letter_tables(None, "dead_letters")
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection, tables, "here")
        assert tables.stored_version(connection) == 3
        migrate(connection, tables, "here", (*UPGRADES, add_column))
        assert tables.stored_version(connection) == 4
        migrate(connection, tables, "here", (*UPGRADES, add_column))
        assert "later" in [c["name"] for c in sa.inspect(connection).get_columns("dead_letters")]
    engine.dispose()


def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    path.write_bytes(b"something else entirely, long enough to be read" * 100)
    with pytest.raises(TargetFailed, match=r"letters\.db cannot be used: file is not a database"):
        open_dead_letter_file(path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        open_dead_letter_file(tmp_path / "file" / "letters.db")


def test_a_store_that_cannot_be_written_is_never_silent(tmp_path: Path) -> None:
    path = tmp_path / "letters.db"
    with open_dead_letter_file(path) as store:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE dead_letters")
        with pytest.raises(TargetFailed, match="no such table") as raised:
            store.add(letters(1))
    assert raised.value.next_step is not None
    assert os.path.exists(path)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("s3://bucket/x", "cannot store dead letters"),
        ("kafka://localhost:1", "a Kafka cluster, which cannot store dead letters"),
        ("nothing://x", "is unknown"),
    ],
)
def test_a_place_that_keeps_no_letters_is_refused(where: str, said: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=said):
        open_dead_letters(where, env={})
