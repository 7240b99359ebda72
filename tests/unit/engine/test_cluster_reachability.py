"""An unreachable cluster is an error at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ematix_flow.engine.spark.cluster_reachability import require_reachable
from ematix_flow.engine.spark.session import spark_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.errors import CannotConnect


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_one_master_that_answers_is_enough(listening: int, closed: int) -> None:
    require_reachable(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")
    require_reachable(f"sc://127.0.0.1:{listening}/;token=x")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://nowhere.invalid:1"])
def test_other_engines_are_not_asked(master: str) -> None:
    require_reachable(master)


@pytest.mark.parametrize("scheme", ["spark", "sc"])
def test_nobody_there_is_reported_before_java_starts(scheme: str, closed: int) -> None:
    with pytest.raises(CannotConnect) as error:
        spark_session(EngineSettings.resolve(engine=f"{scheme}://127.0.0.1:{closed}", env={}))
    assert f"127.0.0.1:{closed}: Connection refused" in error.value.what
    assert error.value.exit_code == 5


def test_a_name_without_an_address_is_reported() -> None:
    with pytest.raises(CannotConnect, match=r"nobody\.invalid"):
        require_reachable("spark://nobody.invalid:7077")
