"""No module imports another in a circle, counting imports inside functions and those for type checkers.

Imports that run at load time are checked by the rules in ``pyproject.toml`` too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import ematix_flow

PACKAGE = Path(ematix_flow.__file__).parent
IMPORT = re.compile(
    r"^ *(from [\w.]+ import (?:\([^)]*\)|[^\n(]+)|import [\w.]+(?: as \w+)?(?=$|  #))", re.MULTILINE
)


def import_graph(package: Path) -> dict[str, set[str]]:
    """Each module with those it imports. A package is one only where a name is imported from it."""
    files = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {
        module: set(imported_modules(file, files)) & files.keys() - {module} for module, file in files.items()
    }


def imported_modules(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    # parsing the import statements alone is ten times quicker than parsing whole files
    statements = IMPORT.findall(file.read_text(encoding="utf-8"))
    for node in ast.parse("\n".join(statements)).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import: {ast.unparse(node)}"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else str(node.module)


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, the first one again at the end; empty when there is none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for imported in sorted(graph[module]):
            circle = visit(imported, [*path, module])
            if circle:
                return circle
        done.add(module)
        return []

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert find_circle(import_graph(PACKAGE)) == []


def test_a_circle_through_a_function_and_a_type_is_found(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("from shop.orders import Order\n")
    (package / "orders.py").write_text("def total():\n    from shop import prices\n")
    (package / "prices.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.orders import Order\n"
    )
    assert find_circle(import_graph(package)) == ["shop.orders", "shop.prices", "shop.orders"]
