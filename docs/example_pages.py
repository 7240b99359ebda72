"""Shows the examples of the repository as pages of the site, each with its README and its files.

Links between ``docs/`` and ``examples/`` are written for readers of the repository; here they become links
of the site. mkdocs calls the functions whose names begin with ``on_`` (see ``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LANGUAGES = {".py": "python", ".toml": "toml", ".sql": "sql", ".csv": "text"}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each example, and one that lists them."""
    from mkdocs.structure.files import File

    for path, text in example_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to an example's README to its page here."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)/README\.md\)", rf"]({up}examples/\1.md)", markdown)


def example_pages() -> Iterator[tuple[str, str]]:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    yield "examples/index.md", re.sub(r"\]\((\w+)/README\.md\)", r"](\1.md)", index)
    for readme in sorted(EXAMPLES.glob("*/README.md")):
        text = readme.read_text(encoding="utf-8").replace("](../../docs/", "](../")
        yield f"examples/{readme.parent.name}.md", "\n".join([text, *_files(readme.parent)])


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*"), key=lambda path: (path.name != "pipelines.py", path)):
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts:
            code = path.read_text(encoding="utf-8")
            yield f"## {path.relative_to(folder)}\n\n```{LANGUAGES[path.suffix]}\n{code}```\n"
