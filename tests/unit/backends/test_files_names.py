"""Names of tables: which folders they mean, and which they may never mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.backends.objectstore.layout.table_paths import TablePaths, locate_table, safe_file_name
from ematix_flow.backends.objectstore.reading.catalog import FilesCatalog
from ematix_flow.backends.objectstore.reading.file_tree import LocalFileTree
from ematix_flow.errors import PlanError, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

COLUMNS = (ColumnSpec("id", DataType("big_int")),)


@pytest.mark.parametrize(
    ("schema", "name", "folder"),
    [
        (None, "events", "events"),
        ("analytics", "events", "analytics/events"),
        (None, "events/raw", "events/raw"),
        (None, "events/raw/", "events/raw"),
        ("a b", "with space", "a b/with space"),
        (None, "emoji \U0001f600", "emoji \U0001f600"),
        (None, "_under", "_under"),
        (None, "we[ird]*{x}?", "we[ird]*{x}?"),
        (None, "back\\slash", "back\\slash"),
    ],
)
def test_a_table_is_the_folder_of_its_name(schema: str | None, name: str, folder: str) -> None:
    root = Path("/lake")
    assert locate_table(root, TableSpec(schema, name, COLUMNS)).folder == root / folder


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (None, "../x"),
        ("..", "x"),
        (None, "a/../../x"),
        (None, "."),
        (None, "/etc/passwd"),
        (None, ".ematix_flow"),
        (None, ".hidden"),
        (None, "a//b"),
        (None, "line\nend"),
        (None, "n\x00l"),
        (None, "x" * 256),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(schema: str | None, name: str) -> None:
    with pytest.raises(PlanError, match="cannot be the name of a folder"):
        locate_table(Path("/lake"), TableSpec(schema, name, COLUMNS))


def test_a_table_inside_another_table_is_refused(tmp_path: Path) -> None:
    outer = TablePaths(tmp_path, ("events",))
    (outer.versions_folder / "00000001-x" / "data").mkdir(parents=True)
    outer.folder.symlink_to(outer.versions_folder / "00000001-x" / "data")
    with pytest.raises(PlanError, match="inside 'events'"):
        TablePaths(tmp_path, ("events", "raw")).require_separate()


def test_a_link_that_the_user_made_is_not_a_table_of_another_root(tmp_path: Path) -> None:
    for number, target in enumerate((Path("/"), Path("/tmp"), tmp_path)):
        (tmp_path / f"events{number}").symlink_to(target)
        TablePaths(tmp_path, (f"events{number}",)).require_own_root()


def test_names_that_look_alike_have_different_stems() -> None:
    assert safe_file_name("a/b") != safe_file_name("a-b")
    assert safe_file_name("a", "b") != safe_file_name("a,b")
    assert safe_file_name("\U0001f600").startswith("table-")


# ------------------------------------------------------------------ names in SQL


def lake(root: Path, *files: str) -> FilesCatalog:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return FilesCatalog(LocalFileTree(root), "parquet")


def test_a_name_finds_a_folder_a_file_or_a_folder_of_a_schema(tmp_path: Path) -> None:
    catalog = lake(
        tmp_path, "events/a.parquet", "one.parquet", "two.pq", "shop/orders/b.parquet", "Big/c.parquet"
    )
    assert [file.name for file in catalog.find(("events",)).files] == ["a.parquet"]
    assert [file.name for file in catalog.find(("one",)).files] == ["one.parquet"]
    assert [file.name for file in catalog.find(("two",)).files] == ["two.pq"]
    assert [file.name for file in catalog.find(("one.parquet",)).files] == ["one.parquet"]
    assert [file.name for file in catalog.find(("shop", "orders")).files] == ["b.parquet"]
    assert [file.name for file in catalog.find(("shop/orders",)).files] == ["b.parquet"]
    assert [file.name for file in catalog.find(("big",)).files] == ["c.parquet"]


def test_partition_folders_belong_to_a_table_and_markers_do_not(tmp_path: Path) -> None:
    catalog = lake(
        tmp_path, "events/day=1/a.parquet", "events/_SUCCESS", "events/.b.crc", "events/_tmp/c.parquet"
    )
    assert [file.name for file in catalog.find(("events",)).files] == ["day=1/a.parquet"]


def test_a_file_is_named_with_its_extension_in_quotes_or_without(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "one.parquet", "shop/two.parquet")
    assert [file.name for file in catalog.find(("one", "parquet")).files] == ["one.parquet"]
    assert [file.name for file in catalog.find(("shop", "two", "parquet")).files] == ["two.parquet"]


def test_folders_of_dates_are_parts_of_a_table_and_others_are_not(tmp_path: Path) -> None:
    catalog = lake(
        tmp_path,
        "events/2026/11/15/a.parquet",
        "events/2026/11/16/b.parquet",
        "events/archive/c.parquet",
        "daily/2026-11-15/d.parquet",
        "out.parquet/part-0.parquet",
    )
    found = catalog.find(("events",))
    assert [file.name for file in found.files] == ["2026/11/15/a.parquet", "2026/11/16/b.parquet"]
    assert (found.nested, found.whole_folder) == (True, False)
    assert [file.name for file in catalog.find(("daily",)).files] == ["2026-11-15/d.parquet"]
    assert [file.name for file in catalog.find(("out",)).files] == ["part-0.parquet"]
    assert catalog.names() == ["daily", "events", "out.parquet"]


def test_a_folder_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    catalog = lake(tmp_path, "events/a.parquet")

    look = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "events":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", refuse)  # a test may run as root, which may read every folder
    with pytest.raises(SourceFailed, match="events: Permission denied") as caught:
        catalog.find(("events",))
    assert caught.value.next_step == "give this user the right to read it"


def test_an_unknown_table_gets_a_suggestion_and_the_list(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "events/a.parquet", "shop/orders/b.parquet", ".ematix_flow/tables/x/a.parquet")
    with pytest.raises(SourceFailed, match="Did you mean 'events'") as caught:
        catalog.find(("evnts",))
    assert caught.value.next_step == "tables there: events, shop.orders"


@pytest.mark.parametrize(
    "name", [("..", "x"), (".ematix_flow",), ("../../etc/passwd",), ("/etc/passwd",), ("",)]
)
def test_sql_cannot_name_what_is_hidden_or_outside(tmp_path: Path, name: tuple[str, ...]) -> None:
    with pytest.raises(SourceFailed, match="cannot be a table of files"):
        lake(tmp_path, ".ematix_flow/tables/a.parquet").find(name)


def test_an_empty_folder_and_a_folder_of_tables_say_so(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "shop/orders/b.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceFailed, match="holds no files yet"):
        catalog.find(("empty",))
    with pytest.raises(SourceFailed, match="is a folder, not a table") as caught:
        catalog.find(("shop",))
    assert "shop.orders" in str(caught.value.next_step)


def test_a_folder_of_another_format_is_not_read(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "events/a.csv")
    with pytest.raises(SourceFailed, match=r"holds csv files \(a.csv\)"):
        catalog.find(("events",))


def test_a_file_of_another_format_is_reported_by_its_name(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "events.csv", "orders.parquet")
    with pytest.raises(SourceFailed, match=r"holds csv files \(events.csv\)") as caught:
        catalog.find(("events",))
    assert caught.value.next_step == "read it through a connection with format='csv'"


def test_a_name_that_is_a_folder_and_a_file_is_ambiguous(tmp_path: Path) -> None:
    catalog = lake(tmp_path, "events/a.parquet", "events.parquet")
    with pytest.raises(SourceFailed, match=r"may be the folder .* and the file"):
        catalog.find(("events",))


def test_a_missing_root_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceFailed, match="does not exist"):
        FilesCatalog(LocalFileTree(tmp_path / "nowhere"), "parquet").find(("events",))


def test_a_connection_to_one_file_has_one_table(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("a\n1\n")
    catalog = FilesCatalog(LocalFileTree(tmp_path / "orders.csv"), "csv")
    assert [file.name for file in catalog.find(("orders",)).files] == ["orders.csv"]
    with pytest.raises(SourceFailed, match="Did you mean 'orders'"):
        catalog.find(("order",))
