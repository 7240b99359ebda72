"""Calls and names of this package that Python refuses by itself are errors of the declaration."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.errors import DeclarationError, ModuleLoadError
from ematix_flow.graph.module_loading import load_module


def refused(tmp_path: Path, text: str, name: str) -> Exception:
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises((DeclarationError, ModuleLoadError)) as caught:
        load_module(f"{name}.py")
    assert isinstance(caught.value, (DeclarationError, ModuleLoadError))
    assert str(caught.value.where) == f"{name}.py:{len(text.splitlines())}"
    return caught.value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "from ematix_flow import Target\nTarget(tabel=1)",
            "Target has no option 'tabel'. Did you mean 'table'?",
        ),
        ("from ematix_flow import pk\npk(x=1)", "pk has no option 'x'. Known: autoincrement."),
        ("from ematix_flow import pk as key\nkey(1)", "pk() takes 0 positional arguments but 1 was given"),
        ("from ematix_flow import normalize\nnormalize.trim(x=1)", "trim has no option 'x'."),
        (
            "from ematix_flow import ematix\nematix.pipline()",
            "ematix has no 'pipline'. Did you mean 'pipeline'?",
        ),
        ("import ematix_flow\nematix_flow.Tagret()", "ematix_flow has no 'Tagret'. Did you mean 'Target'?"),
        ("from ematix_flow import Tagret", "ematix_flow has no 'Tagret'. Did you mean 'Target'?"),
        ("from ematix_flow.normalize import trm", "ematix_flow.normalize has no 'trm'. Did you mean 'trim'?"),
    ],
)
def test_a_wrong_call_or_name_of_ours_is_an_error_of_the_declaration_at_its_line(
    tmp_path: Path, text: str, what: str
) -> None:
    error = refused(tmp_path, text, f"wrong_{tmp_path.name}")
    assert isinstance(error, DeclarationError)
    assert error.what.startswith(what)
    assert error.exit_code == 2


def test_a_wrong_call_of_the_users_function_stays_an_error_of_the_module(tmp_path: Path) -> None:
    text = "from ematix_flow import *\ndef pk():\n    pass\npk(x=1)"
    error = refused(tmp_path, text, "own_function")
    assert isinstance(error, ModuleLoadError)
    assert "unexpected keyword argument 'x'" in error.what


def test_an_error_of_a_dataclass_points_at_the_users_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "from ematix_flow.transforms import limit\nlimit(n='b')", "generated_init")
    assert isinstance(error, DeclarationError)
