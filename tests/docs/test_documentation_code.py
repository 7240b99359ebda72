"""Every code block of README.md and docs/*.md runs. How a page says what to do with one: blocks.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.engine.spark import session
from tests.docs.runner import run_page

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [p for p in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("**/*.md"))) if p.exists()]
NEED_SPARK = {
    *("docs/how-to/files.md", "docs/how-to/iceberg.md", "docs/how-to/lakes.md", "docs/how-to/streams.md"),
    *("docs/how-to/lookups.md", "docs/how-to/windows.md", "docs/how-to/sessions.md"),
    *("docs/how-to/joins.md", "docs/how-to/change-a-stream.md"),
    *("docs/how-to/python-functions.md", "docs/learn/getting-started.md", "docs/reference/pipelines.md"),
}
DATABASES = ("WAREHOUSE_URL", "SOURCE_URL")
# A program may leave its files and connections to the end of its process
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def page_name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [p for p in PAGES if page_name(p) in NEED_SPARK], ids=page_name)
def test_the_code_of_a_page_runs_as_written_on_spark(
    page: Path, spark: object, page_environment: None, tmp_path: Path
) -> None:
    run_page(page, tmp_path)
    assert session._running is not None and session._running.session is spark, "the page started another one"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [p for p in PAGES if page_name(p) not in NEED_SPARK], ids=page_name)
def test_the_code_of_a_page_runs_as_written(page: Path, page_environment: None, tmp_path: Path) -> None:
    before = session._running
    run_page(page, tmp_path)
    assert session._running is before, f"the page started Spark: add it to NEED_SPARK in {__file__}"


@pytest.fixture
def page_environment(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The servers that the page's variables name."""
    text = page.read_text(encoding="utf-8")
    if "KAFKA_BOOTSTRAP" in text:
        monkeypatch.setenv("KAFKA_BOOTSTRAP", request.getfixturevalue("kafka").bootstrap)
    if "VAULT_ADDR" in text:
        vault = request.getfixturevalue("vault")
        monkeypatch.setenv("VAULT_ADDR", vault.address)
        monkeypatch.setenv("VAULT_TOKEN", vault.token)
    needed = [name for name in DATABASES if name in text]
    if not needed:
        yield
        return
    postgres = request.getfixturevalue("postgres")
    names = {variable: postgres.create_database(variable) for variable in needed}
    for variable, name in names.items():
        monkeypatch.setenv(variable, postgres.url(name))
    yield
    for name in names.values():
        postgres.drop_database(name)
