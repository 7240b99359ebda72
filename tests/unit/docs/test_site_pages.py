"""Links between pages lead somewhere, the navigation has every page, and generated pages are complete."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from ematix_flow import ematix
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.api.streaming import StreamingPipeline, run_streaming_pipeline
from tests.docs.blocks import blocks_of

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    *(p for part in ("docs", "examples") for p in sorted(REPOSITORY.glob(f"{part}/**/*.md"))),
]
LINK = re.compile(r"(?<!`)\[[^\]\n]*(?:\n[^\]\n]*)?\]\((?P<target>[^)\s]+)\)")


def reference_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return {DOCS / path: text for path, text in reference_pages().generated_pages().items()}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    plain = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", plain, re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path, generated: dict[Path, str]) -> None:
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for found in LINK.finditer(text):
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        path = (page.parent / target).resolve() if target else page
        known = generated.get(path, "")
        if path.suffix == ".md" and path.exists():
            known = path.read_text(encoding="utf-8")
        if not (path.exists() or path in generated) or (anchor and anchor not in anchors(known)):
            broken.append(found["target"])
    assert broken == []


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"(\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")}
    reference = reference_pages()
    assert sorted(listed) == sorted({*pages, reference.CLI_PAGE, reference.API_PAGE, "examples/index.md"})


def test_every_command_and_option_is_on_the_page_of_commands(generated: dict[Path, str]) -> None:
    reference = reference_pages()
    text = generated[DOCS / reference.CLI_PAGE]
    for words, command, context in reference.commands():
        assert f"# {words}\n" in text
        for names, _ in reference.option_rows(command, context):
            assert f"`{names}`" in text


def test_an_option_is_described_once_in_its_section(generated: dict[Path, str]) -> None:
    text = generated[DOCS / reference_pages().CLI_PAGE]
    for section in re.split(r"^##+ ", text, flags=re.M):
        rows = re.findall(r"^\| `(-[^`]+)` \|", section, re.M)
        assert sorted(rows) == sorted(set(rows))


def test_the_page_of_the_api_has_every_public_name(generated: dict[Path, str]) -> None:
    import ematix_flow

    text = generated[DOCS / reference_pages().API_PAGE]
    modules = {"config", "connections", "errors", "streaming", "Annotated", "__version__", "ematix"}
    missing = {name for name in ematix_flow.__all__ if not re.search(rf"[`#. ]{name}\b", text)}
    assert missing - modules == set()


def described_options(text: str) -> list[str]:
    """The names in the first column of the tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_on_pipelines_describes_every_option_once() -> None:
    text = (DOCS / "reference" / "pipelines.md").read_text(encoding="utf-8")
    shown = described_options(text.partition("## Options")[2].partition("\n## ")[0])
    aliases = {"incremental_column", "continue_on_failure"}
    assert sorted(shown) == sorted(set(inspect.signature(ematix.pipeline).parameters) - aliases)


def test_the_page_on_streams_describes_every_option_once() -> None:
    shown = described_options((DOCS / "reference" / "streams.md").read_text(encoding="utf-8"))
    own = {"metrics", "observers", "together_with"}  # of streams that one process runs together
    options = {
        *inspect.signature(StreamOptions).parameters,
        *(name for name in inspect.signature(run_streaming_pipeline).parameters if name != "options"),
        *(name for name in inspect.signature(StreamingPipeline.start).parameters if name != "self"),
    }
    assert sorted(shown) == sorted(options - own)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_a_code_block_says_its_language(page: Path) -> None:
    assert [block.line for block in blocks_of(page.read_text(encoding="utf-8")) if not block.language] == []


def test_code_that_a_page_shows_from_an_example_is_the_example_s() -> None:
    shown = 0
    for page in PAGES:
        for block in blocks_of(page.read_text(encoding="utf-8")):
            found = re.search(r"examples/[\w/]+\.py", block.not_run or "")
            if found:
                assert block.code in (REPOSITORY / found[0]).read_text(encoding="utf-8"), (
                    page.name,
                    block.line,
                )
                shown += 1
    assert shown >= 9


def test_every_example_and_its_how_to_link_to_each_other() -> None:
    how_tos = "".join(
        page.read_text(encoding="utf-8") for page in (DOCS / "how-to").glob("*.md") if page.stem != "index"
    )
    for readme in (REPOSITORY / "examples").glob("*/README.md"):
        assert f"examples/{readme.parent.name}/README.md" in how_tos
        assert "](../../docs/how-to/" in readme.read_text(encoding="utf-8")
