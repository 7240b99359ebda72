"""Names with any text are found, and a changed module is reported."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.web.app import BASE
from ematix_flow.web.declaring_files import DeclaringFiles
from tests.unit.web.conftest import Serve, Served

HOSTILE = "<script>alert(1)</script>"


def test_a_name_with_a_slash_is_one_part_of_a_path(served: Served) -> None:
    found = served.get(f"/pipelines/{quote(HOSTILE, safe='')}")
    assert found.status == 200, found.body
    assert found.json["pipeline"] == HOSTILE


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/pipelines/{}"),
        ("GET", "/pipelines/{}/plan"),
        ("GET", "/streams/{}/samples"),
        ("POST", "/connections/{}/check"),
    ],
)
@pytest.mark.parametrize("name", ["a/plan", "a/samples", "a/check", "/", "a%2Fb"])
def test_a_suffix_within_a_name_is_not_the_suffix_of_the_route(
    served: Served, method: str, path: str, name: str
) -> None:
    answer = served.send(method, BASE + path.format(quote(name, safe="")), body={})
    assert answer.status == 404
    assert name in answer.json["error"]["what"], answer.body
    assert "there is no GET" not in answer.json["error"]["what"]


def test_an_encoded_path_of_the_interface_needs_a_token(served: Served) -> None:
    for path in ("/api/v1/pipelines%2Forders", "/%61pi/v1/pipelines", "/api%2Fv1/pipelines"):
        assert served.send("GET", path, token=None).status == 401


def test_a_changed_module_is_reported(serve: Serve) -> None:
    served = serve()
    file = next(served.folder.glob("pipelines_*.py"))
    file.write_text(file.read_text() + "\n# another line\n")
    assert served.get("/me").json["module_changed"] == [file.name]


def test_the_disk_is_asked_at_most_every_few_seconds(serve: Serve) -> None:
    served = serve()
    files = DeclaringFiles(served.site.registry, pause=3600)
    assert files.changed() == []
    next(served.folder.glob("pipelines_*.py")).unlink()
    assert files.changed() == []


def test_a_registry_without_a_file_has_not_changed() -> None:
    with use_registry(Registry()) as registry:
        assert DeclaringFiles(registry, pause=0).changed() == []


def test_a_wrong_code_in_the_address_is_reported(served: Served) -> None:
    answer = served.send("GET", "/?code=wrong", token=None)
    assert answer.status == 303
    assert answer.headers["location"] == "/?sign-in=refused"
    assert "set-cookie" not in answer.headers


def test_the_next_step_without_a_token_is_readable(served: Served) -> None:
    assert "Bearer TOKEN" in served.get("/me", token=None).json["error"]["next"]
