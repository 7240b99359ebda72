"""Every code block of README.md and docs/*.md runs. How a page says what to do with one: blocks.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.runner import run_page

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [p for p in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("**/*.md"))) if p.exists()]
DATABASES = ("WAREHOUSE_URL", "SOURCE_URL")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_the_code_of_a_page_runs_as_written(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    text = page.read_text(encoding="utf-8")
    if "KAFKA_BOOTSTRAP" in text:
        env["KAFKA_BOOTSTRAP"] = request.getfixturevalue("kafka").bootstrap
    if "VAULT_ADDR" in text:
        vault = request.getfixturevalue("vault")
        env |= {"VAULT_ADDR": vault.address, "VAULT_TOKEN": vault.token}
    needed = [name for name in DATABASES if name in text]
    if not needed:
        run_page(page, tmp_path, env)
        return
    postgres = request.getfixturevalue("postgres")
    names = {variable: postgres.create_database(variable) for variable in needed}
    try:
        run_page(page, tmp_path, {**env, **{v: postgres.url(name) for v, name in names.items()}})
    finally:
        for name in names.values():
            postgres.drop_database(name)
