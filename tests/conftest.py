"""What every test gets: its own home, state and registry; Spark and servers on demand.

The workers of a run share one server of a kind: tests/services/shared.py.

A test that asks for a server which cannot be had fails: it is never skipped.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.chosen import runs_always
from tests.services import azure as azure_service
from tests.services import gcs as gcs_service
from tests.services import glue as glue_service
from tests.services import kafka as kafka_service
from tests.services import kinesis as kinesis_service
from tests.services import kubernetes as kubernetes_service
from tests.services import mariadb as mariadb_service
from tests.services import mysql as mysql_service
from tests.services import postgres as postgres_service
from tests.services import prometheus as prometheus_service
from tests.services import pubsub as pubsub_service
from tests.services import rabbitmq as rabbitmq_service
from tests.services import registry as registry_service
from tests.services import s3 as s3_service
from tests.services import vault as vault_service
from tests.services.mysql_server import MySQLServer
from tests.services.shared import Keeper, shared_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests load a handful of rows: to compile code for each query would cost more than to run it.
FEW_ROWS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
LAKES = (
    "delta",
    "iceberg",
    "kafka",
    "s3",
)  # all that any test needs: more jars later would mean another start
ROOM_IN_MEMORY = 6 << 30
UNIT = Path(__file__).parent / "unit"
# What a test needs shows in its fixtures; the marks follow, so that  -m "not spark"  is always right.
MARKS = {
    "spark": "spark",
    "postgres": "postgres",
    "pg_database": "postgres",
    "mariadb": "mariadb",
    "mariadb_database": "mariadb",
    "mysql": "mysql",
    "mysql_database": "mysql",
    "rabbitmq": "rabbitmq",
    "rabbitmq_queue": "rabbitmq",
    "s3": "s3",
    "s3_bucket": "s3",
    "azure": "azure",
    "azure_container": "azure",
    "gcs": "gcs",
    "gcs_bucket": "gcs",
    "pubsub": "pubsub",
    "pubsub_topic": "pubsub",
    "kinesis": "kinesis",
    "kinesis_stream": "kinesis",
    "kafka": "kafka",
    "kafka_topic": "kafka",
    "registry": "registry",
    "glue": "glue",
    "vault": "vault",
    "kubernetes": "kubernetes",
    "pushgateway": "prometheus",
    "promtool": "prometheus",
    "browser": "browser",
}


KEEPER = pytest.StashKey[Keeper]()


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis measures each example's time, which says nothing on a busy machine."""
    from hypothesis import settings

    gc.disable()  # until all tests are collected
    compile_once()
    write_to_memory()
    if getattr(config.option, "tx", None) and not hasattr(config, "workerinput"):
        config.stash[KEEPER] = Keeper()
    settings.register_profile("busy", deadline=None)
    settings.load_profile("busy")


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection and run it less often: it took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # else libraries report their objects as leaked
    keeper = config.stash.get(KEEPER, None)
    if keeper is not None:
        keeper.close()


def compile_once() -> None:
    """If Python must not write compiled files next to the code, keep them in another folder.

    Else every process that a test starts, Spark's workers among them, would compile all that it imports: that
    takes longer than the rest of its start.
    """
    if sys.dont_write_bytecode:
        version = "{}.{}".format(*sys.version_info)
        kept = Path(tempfile.gettempdir()) / f"ematix-flow-compiled-{os.getuid()}-{version}"
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(kept))
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not runs_always(item):
            item.add_marker("long")
    if "long" not in config.option.markexpr and not any("::" in given for given in config.args):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    for item in items:
        needed = {MARKS[name] for name in getattr(item, "fixturenames", ()) if name in MARKS}
        if needed and UNIT in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid} needs {', '.join(sorted(needed))}: it is no unit test")
        for mark in needed:
            item.add_marker(mark)
    items[:] = in_order_of_start(items, getattr(config, "workerinput", {}).get("workercount", 1))


def in_order_of_start(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in an order in which xdist's ``worksteal`` starts one Spark session and has a short tail.

    It gives each worker a stretch of equal length. A worker that is done takes tests from the end of the
    longest stretch that is left. So the tests that use the session begin the first stretch, and the slow ones
    begin the second. The other workers take the quick tests behind them: Spark starts in a second worker only
    when nothing else is left.
    """
    if workers == 1:
        return items
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    spark = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    others = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]
    slow = [item for item in others if item.path in slow_files]
    quick = [item for item in others if item.path not in slow_files]
    fill = max(len(items) // workers - len(spark), 0)
    return [*spark, *quick[:fill], *slow, *quick[fill:]]


def write_to_memory() -> None:
    """Let tests write into memory where there is room: what they show does not depend on a disk.

    A database in a file waits for the disk at each commit, which is half of the time of many tests.
    """
    memory = Path("/dev/shm")
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(memory, os.W_OK):
        return
    found = os.statvfs(memory)
    if not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= ROOM_IN_MEMORY:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(memory)


def real_cache() -> str:
    """The user's own cache: jars and class-data archives are fetched and made once, not for each test."""
    given = os.environ.get("EMATIX_FLOW_CACHE")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return given or str(Path(root) / "ematix-flow")


CACHE = real_cache()
_PREFIXES = (
    *("EMATIX_FLOW_", "EMATIX_PROBE_", "XDG_"),
    *("AWS_", "PUBSUB_", "GOOGLE_", "VAULT_", "AZURE_", "STORAGE_"),
)


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace of the developer's own home, settings or state; the working directory is ``tmp_path``."""
    home = tmp_path.with_name(f"{tmp_path.name}-home")
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EMATIX_FLOW_STATE", str(home / "state"))
    monkeypatch.setenv("EMATIX_FLOW_CACHE", CACHE)
    monkeypatch.setenv("EMATIX_FLOW_CDS", "use")  # to make one for every set of jars would take minutes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a test may write a module twice within a second
    monkeypatch.setattr(sys, "path", list(sys.path))  # Spark's workers get what a loaded module adds to it


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """Secrets that one test made known are not masked in the next."""
    from ematix_probe import redaction

    before = set(redaction._remembered)
    yield
    redaction._remembered.clear()
    redaction._remembered.update(before)


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """Declarations of one test are unknown to the next."""
    from ematix_flow.graph.registry import Registry, use_registry

    with use_registry(Registry()):
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this test process; it is stopped at the end."""
    from ematix_flow.engine.jvm import java_options
    from ematix_flow.engine.spark.session import spark_session, stop_session
    from ematix_flow.engine.spark.settings import EngineSettings

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(java_options, "_LARGEST_MEMORY", 3 << 30)  # each process of the tests has one
        session = spark_session(EngineSettings.resolve(env={}), jar_groups=LAKES)
    for key, value in FEW_ROWS.items():
        session.conf.set(key, value)
    yield session
    stop_session()


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_service.PostgresServer]:
    """The PostgreSQL server of this test run."""
    with shared_server("postgres") as server:
        yield server


@pytest.fixture
def pg_database(postgres: postgres_service.PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    postgres.start()
    name = postgres.create_database(request.node.name)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MySQLServer]:
    """The MariaDB server of this test run."""
    with mariadb_service.running_server() as server:
        yield server


@pytest.fixture
def mariadb_database(mariadb: MySQLServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    with mariadb.own_database(request.node.name) as url:
        yield url


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQLServer]:
    """The MySQL server of this test run."""
    with mysql_service.running_server() as server:
        yield server


@pytest.fixture
def mysql_database(mysql: MySQLServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    with mysql.own_database(request.node.name) as url:
        yield url


@pytest.fixture(scope="session")
def s3() -> Iterator[s3_service.S3Server]:
    """The S3 server of this test run."""
    with shared_server("s3") as server:
        yield server


@pytest.fixture
def s3_bucket(s3: s3_service.S3Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty bucket that only this test uses."""
    s3.start()
    name = s3.create_bucket(request.node.name)
    yield name
    s3.drop_bucket(name)


@pytest.fixture(scope="session")
def azure() -> Iterator[azure_service.AzureServer]:
    """The emulator of Azure Blob Storage of this test run."""
    with shared_server("azure") as server:
        yield server


@pytest.fixture
def azure_container(azure: azure_service.AzureServer, request: pytest.FixtureRequest) -> str:
    """The name of an empty container that only this test uses."""
    azure.start()
    return azure.create_container(request.node.name)


@pytest.fixture(scope="session")
def gcs() -> Iterator[gcs_service.GcsServer]:
    """The emulator of Google Cloud Storage of this test run."""
    with shared_server("gcs") as server:
        yield server


@pytest.fixture
def gcs_bucket(gcs: gcs_service.GcsServer, request: pytest.FixtureRequest) -> str:
    """The name of an empty bucket that only this test uses."""
    gcs.start()
    return gcs.create_bucket(request.node.name)


@pytest.fixture(scope="session")
def pubsub() -> Iterator[pubsub_service.PubSubServer]:
    """Google's Pub/Sub test server of this test run."""
    with shared_server("pubsub") as server:
        yield server


@pytest.fixture(scope="session")
def registry() -> Iterator[registry_service.RegistryServer]:
    """The schema registry of this test run."""
    with registry_service.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[rabbitmq_service.RabbitMQServer]:
    """The RabbitMQ server of this test run."""
    with shared_server("rabbitmq") as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafka_service.KafkaServer]:
    """The Kafka broker of this test run."""
    with shared_server("kafka") as server:
        yield server


@pytest.fixture
def pubsub_topic(
    pubsub: pubsub_service.PubSubServer, request: pytest.FixtureRequest
) -> Iterator[pubsub_service.Topic]:
    """A topic and a subscription of it, which only this test uses."""
    pubsub.start()
    topic = pubsub.create_topic(request.node.name)
    yield topic
    pubsub.drop_topic(topic)


@pytest.fixture(scope="session")
def kinesis() -> Iterator[kinesis_service.KinesisServer]:
    """The Kinesis emulator of this test run."""
    with shared_server("kinesis") as server:
        yield server


@pytest.fixture
def kinesis_stream(kinesis: kinesis_service.KinesisServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty stream of two shards that only this test uses."""
    kinesis.start()
    name = kinesis.create_stream(request.node.name, shards=2)
    yield name
    kinesis.drop_stream(name)


@pytest.fixture
def rabbitmq_queue(
    rabbitmq: rabbitmq_service.RabbitMQServer, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The name of an empty durable queue that only this test uses."""
    rabbitmq.start()
    name = rabbitmq.create_queue(request.node.name)
    yield name
    rabbitmq.delete_queue(name)


@pytest.fixture
def kafka_topic(kafka: kafka_service.KafkaServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty topic with one partition that only this test uses."""
    kafka.start()
    name = kafka.create_topic(request.node.name)
    yield name
    kafka.drop_topic(name)


@pytest.fixture(scope="session")
def glue() -> Iterator[glue_service.GlueServer]:
    """The emulator of AWS Glue of this test run."""
    with glue_service.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def vault() -> Iterator[vault_service.VaultServer]:
    """The Vault of this test run."""
    with vault_service.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def pushgateway() -> Iterator[prometheus_service.Pushgateway]:
    """The Pushgateway of this test run."""
    with prometheus_service.running_gateway() as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[kubernetes_service.KubernetesServer]:
    """The API server of Kubernetes of this test run."""
    with kubernetes_service.running_server() as server:
        yield server


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' own checker."""
    return prometheus_service.promtool()
