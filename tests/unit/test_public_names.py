"""The public names of the package: what a program gets, what a type checker sees, and that each exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ematix_flow
from ematix_flow import _core


def names_for_type_checkers(file: str) -> dict[str, str]:
    """The names imported under ``if TYPE_CHECKING``, each with its module."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    (block,) = (
        each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
    )
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    assert all(alias.asname == alias.name for each in imports for alias in each.names), (
        "as makes a name public"
    )
    return {alias.name: str(each.module) for each in imports for alias in each.names}


def test_type_checkers_see_the_names_that_programs_get_from_the_same_modules() -> None:
    at_runtime = {
        name: module for module, names in ematix_flow._NAMES_BY_MODULE.items() for name in names.split()
    }
    at_runtime |= dict.fromkeys(ematix_flow._MODULES, "ematix_flow")
    assert names_for_type_checkers(ematix_flow.__file__) == at_runtime
    assert set(ematix_flow.__all__) == {*at_runtime, "Annotated", "__version__"}


@pytest.mark.parametrize("name", ematix_flow.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(ematix_flow, name) is not None
    assert name in dir(ematix_flow)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Pipelines'"):
        ematix_flow.Pipelines  # noqa: B018


def test_the_brokers_for_direct_use_are_those_that_type_checkers_see() -> None:
    seen = names_for_type_checkers(_core.__file__)
    assert seen == {name: module for name, (module, _) in _core._BACKENDS.items()}
    assert dir(_core) == _core.__all__ == sorted(seen)
