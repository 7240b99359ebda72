"""The page on orchestrators shows the examples that the tests run."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import blocks_of

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "orchestrators.md").read_text(encoding="utf-8")
    shown = [block.code for block in blocks_of(page)]
    names = ("airflow_dag.py", "dagster_job.py", "prefect_flow.py")
    examples = [(REPOSITORY / "examples" / "orchestrators" / name).read_text("utf-8") for name in names]
    assert [text.partition('"""\n\n')[2] for text in examples] == shown
