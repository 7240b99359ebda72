"""Which engine a run gets, and the reported reason."""

from __future__ import annotations

import pytest

from ematix_flow.engine.spark.machine_resources import cores
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.errors import CannotConnect, ConfigError


def resolve(mode: str | None = None, peers: tuple[str, ...] = (), **options: object) -> EngineSettings:
    known = {
        "masters.example": ["10.0.0.1", "10.0.0.2"],
        "spark.data.svc.cluster.local": ["10.1.0.7"],
        "six.example": ["fd00::1"],
    }
    options.setdefault("env", {})
    return EngineSettings.resolve(
        engine=mode,
        peers=peers,
        lookup=lambda host, port: known.get(host, []),
        **options,  # type: ignore[arg-type]
    )


def test_without_peers_auto_is_this_machine() -> None:
    settings = resolve()
    assert settings.mode == "auto"
    assert settings.master == f"local[{cores()}]"
    assert "no peers" in settings.reason
    assert settings.is_local
    assert settings.cores == cores()


@pytest.mark.parametrize(
    ("peers", "master"),
    [
        (("spark://one:7077",), "spark://one:7077"),
        (("spark://one:7077", "spark://two:7078"), "spark://one:7077,two:7078"),
        (("dns://masters.example:7077",), "spark://10.0.0.1:7077,10.0.0.2:7077"),
        (("k8s://spark.data:7077",), "spark://10.1.0.7:7077"),
        (("dns://six.example:7077",), "spark://[fd00::1]:7077"),
        (("spark://one:7077", "spark://one:7077"), "spark://one:7077"),
    ],
)
def test_auto_is_distributed_when_peers_have_addresses(peers: tuple[str, ...], master: str) -> None:
    settings = resolve("auto", peers)
    assert settings.master == master
    assert "peers came to" in settings.reason
    assert not settings.is_local


def test_auto_falls_back_to_this_machine_when_no_peer_has_an_address() -> None:
    settings = resolve("auto", ("dns://nobody.example:7077",))
    assert settings.is_local
    assert "none of the peers" in settings.reason


def test_distributed_needs_peers() -> None:
    with pytest.raises(ConfigError, match="no peers"):
        resolve("distributed")


def test_distributed_does_not_fall_back() -> None:
    with pytest.raises(CannotConnect, match=r"nobody\.example"):
        resolve("distributed", ("dns://nobody.example:7077",))


def test_a_fixed_peer_may_be_written_as_http() -> None:
    assert resolve("auto", ("http://one:7077", "spark://two:7077")).master == "spark://one:7077,two:7077"


def test_a_peer_of_https_is_refused_with_the_equivalent() -> None:
    with pytest.raises(ConfigError) as error:
        resolve("auto", ("https://one:7077",))
    assert "spark://one:7077" in str(error.value)
    assert "spark.ssl" in str(error.value)


@pytest.mark.parametrize(
    "peer",
    ["http://host", "spark://host", "dns://host:0", "dns://host:70000", "k8s://service:7077", "host:7077"],
)
def test_a_peer_of_another_form_is_refused_with_the_forms_there_are(peer: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve("auto", (peer,))
    assert "k8s://service.namespace:port" in str(error.value)


@pytest.mark.parametrize(
    ("mode", "master"),
    [
        ("local", f"local[{cores()}]"),
        ("local[3]", "local[3]"),
        ("local[3,4]", "local[3,4]"),
        ("local[*]", f"local[{cores()}]"),
        ("spark://a:7077,b:7077", "spark://a:7077,b:7077"),
        ("k8s://https://api:6443", "k8s://https://api:6443"),
        ("yarn", "yarn"),
        ("sc://host:15002", "sc://host:15002"),
    ],
)
def test_a_named_engine_is_taken_as_named(mode: str, master: str) -> None:
    settings = resolve(mode, ("spark://ignored:7077",))
    assert settings.master == master
    assert "asked for" in settings.reason


@pytest.mark.parametrize(
    ("wrong", "meant"), [("lokal", "local"), ("distribted", "distributed"), ("yarm", "yarn")]
)
def test_an_unknown_engine_gets_a_did_you_mean(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        resolve(wrong)


@pytest.mark.parametrize(
    "mode", ["local[0]", "local[2,]", "local[]", "local[two]", "spark://", "", "sc:// x"]
)
def test_a_mode_that_is_nearly_right_is_refused_or_the_default(mode: str) -> None:
    if mode == "":
        assert resolve(mode).mode == "auto"
        return
    with pytest.raises(ConfigError):
        resolve(mode)


def test_the_argument_wins_over_the_environment_and_that_over_the_file() -> None:
    env, config = {"EMATIX_FLOW_ENGINE": "local[2]"}, {"engine": {"mode": "local[3]"}}
    assert resolve("local[1]", env=env, config=config).master == "local[1]"
    by_env = resolve(env=env, config=config)
    assert by_env.master == "local[2]"
    assert "EMATIX_FLOW_ENGINE" in by_env.reason
    by_file = resolve(config=config)
    assert by_file.master == "local[3]"
    assert "[engine]" in by_file.reason


def test_the_file_sets_memory_partitions_conf_and_purpose() -> None:
    table = {
        "peers": ["spark://one:7077"],
        "memory": "4G",
        "shuffle_partitions": 8,
        "conf": {"spark.executor.memory": "2g", "spark.speculation": True, "spark.task.maxFailures": 2},
        "purpose": "long",
    }
    settings = resolve(config={"engine": table})
    assert settings.master == "spark://one:7077"
    assert settings.memory == "4g"
    assert settings.shuffle_partitions == 8
    assert settings.conf == {
        "spark.executor.memory": "2g",
        "spark.speculation": "true",
        "spark.task.maxFailures": "2",
    }
    assert settings.purpose == "long"


def test_the_file_may_name_the_engine_in_one_word() -> None:
    assert resolve(config={"engine": "local[5]"}).master == "local[5]"


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"mod": "local"}, "Did you mean 'mode'"),
        ({"memory": "lots"}, '"4g"'),
        ({"memory": 4}, '"4g"'),
        ({"shuffle_partitions": 0}, "from 1"),
        ({"shuffle_partitions": True}, "from 1"),
        ({"conf": {"executor.memory": "1g"}}, "begin with 'spark.'"),
        ({"conf": {"spark.x": ["a"]}}, "neither text nor a number"),
        ({"conf": "x"}, "table of Spark settings"),
        ({"peers": "spark://one:7077"}, "list"),
        ({"purpose": "medium"}, '"short" or "long"'),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_right(table: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(config={"engine": table})
    assert told in str(error.value)


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[engine\]"):
        resolve(config={"engine": 3})
