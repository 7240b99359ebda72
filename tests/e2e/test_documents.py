"""The samples of the documents that the API follows, run unchanged against a real Postgres.

The documents are not part of this repository. They are read from the folder that
``EMATIX_FLOW_DOCUMENTS`` names, or from ``shared/spec`` next to the checkout, where continuous
integration puts them.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import psycopg
import pytest

from ematix_flow.graph.module_loading import load_module

DOCUMENTS = os.environ.get("EMATIX_FLOW_DOCUMENTS")  # read here: a test runs without our variables
NEXT_TO_REPOSITORY = Path(__file__).resolve().parents[3] / "shared" / "spec"


@pytest.fixture
def documents() -> Path:
    folder = Path(DOCUMENTS) if DOCUMENTS else NEXT_TO_REPOSITORY
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the documents are not at {folder}")
        pytest.skip("the documents whose samples this runs are not part of the repository")
    return folder


def first_python_block(text: str) -> str:
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def reindented(lines: list[str]) -> str:
    """A sample whose indentation was lost on the way: bodies of classes and functions get it back."""
    out, inside = [], False
    for line in lines:
        starts_anew = line.startswith(("@", "class ", "def ", "from ", "import ")) or line == ")"
        if starts_anew:
            inside = False
        out.append(f"    {line}" if inside else line)
        if line.startswith(("class ", "def ")):
            inside = True
    return "\n".join(out)


def test_the_first_example_of_the_readme_runs_unchanged(
    documents: Path, pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = first_python_block((documents / "seed-001-readme-v0.3.md").read_text())
    (tmp_path / "readme_first_example.py").write_text(sample)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute("CREATE TABLE raw.events (event_id bigint, name text, received_at timestamptz)")
        connection.execute(
            "INSERT INTO raw.events SELECT n, CASE WHEN n % 2 = 0 THEN 'event ' || n END, now() "
            "FROM generate_series(1, 5) n"
        )
    monkeypatch.setenv("WAREHOUSE_URL", pg_database)
    registry = load_module("readme_first_example")
    result = registry.pipeline("ingest_events").handle.sync()
    assert (result.status, result.path, result.rows_inserted) == ("succeeded", "same_db", 5)
    with psycopg.connect(pg_database) as connection:
        landed = connection.execute(
            "SELECT event_id, name, received_at FROM analytics.events ORDER BY 1"
        ).fetchall()
        source = connection.execute(
            "SELECT event_id, name, received_at FROM raw.events ORDER BY 1"
        ).fetchall()
    assert landed == source


def test_the_first_quickstart_keeps_the_versions_of_its_rows(
    documents: Path, pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (documents / "seed-000-readme-v0.1.txt").read_text()
    start = text.index("from typing import Annotated", text.index("Quickstart 1"))
    sample = reindented(
        text[start : text.index("Where does the data come from", start)].rstrip().splitlines()
    )
    assert 'mode="scd2"' in sample
    (tmp_path / "readme_quickstart.py").write_text(sample)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA raw")
        connection.execute(
            "CREATE TABLE raw.customers (customer_id bigint, email text, name text, updated_at timestamptz)"
        )
        connection.execute(
            textwrap.dedent("""
            INSERT INTO raw.customers VALUES
              (1, '  Ada@Example.COM ', 'Ada', '2026-01-01 10:00:00+01'),
              (2, '   ', 'Nobody', '2026-01-02 10:00:00+00'),
              (3, NULL, NULL, '2026-01-03 10:00:00.000001+00')
            """)
        )
    monkeypatch.setenv("EMATIX_FLOW_DSN", pg_database)
    registry = load_module("readme_quickstart")
    result = registry.pipeline("sync_customers").handle.sync()
    assert (result.status, result.rows_inserted) == ("succeeded", 3)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(
            "UPDATE raw.customers SET email = 'NEW@example.com', updated_at = now() WHERE name = 'Ada'"
        )
    assert registry.pipeline("sync_customers").handle.sync().status == "succeeded"
    with psycopg.connect(pg_database) as connection:
        rows = connection.execute(
            "SELECT customer_id, email, name FROM analytics.customer_dim ORDER BY 1, 2"
        ).fetchall()
    assert rows == [
        (1, "ada@example.com", "Ada"),
        (1, "new@example.com", "Ada"),
        (2, None, "Nobody"),
        (3, None, None),
    ]
