"""Tables that other loads have filled, which become histories of change events: SQLite and DuckDB."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ematix_flow.spec.tables import TableContents
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load
from tests.contract.embedded_setup import KINDS, backend_at, run_sql
from tests.property.change_model import KEYS, Mirror, mirror_table

DAY = dt.datetime(2023, 1, 1, tzinfo=dt.timezone.utc)
WRITTEN = {"connector": "postgresql", "lsn": 10, "ts_ms": 1_700_000_000_000}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_marked_as_deleted_become_closed_versions_of_changes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    target = backend_at(kind, path).target()
    assert target is not None
    keeps: TableContents = "soft_deletes"
    merged = replace(mirror_table(soft=False), keeps=keeps)
    values = ("note", "amount")
    matching = Matching(keys=KEYS, compare=values, update=values, deletes="soft")
    rows = [{"region": "eu", "id": number, "note": "old", "amount": number} for number in (1, 2)]
    for day, source in enumerate((rows, rows[:1])):
        loaded_at = DAY + dt.timedelta(days=day)
        load_rows(target, new_load(merged, "merge", matching=matching, loaded_at=loaded_at), source)
    mirror = Mirror(target, soft=False, history=True)
    again = {"op": "c", "before": None, "after": {**rows[1], "note": "new"}, "source": WRITTEN}
    mirror.deliver([json.dumps(again).encode()])
    table = "shop__mirror" if kind == "sqlite" else "shop.mirror"
    found = run_sql(kind, path, f"SELECT id, note, valid_to IS NULL FROM {table} ORDER BY id, valid_from")
    assert [(id, note, bool(is_open)) for id, note, is_open in found] == [
        (1, "old", True),
        (2, "old", False),
        (2, "new", True),
    ]
