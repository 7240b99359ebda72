"""A private Kafka: the real broker in one JVM, controller included, with its own data folder and ports.

It listens in four ways at once: plainly, with a login, with client certificates, and with both a login and
TLS. Users, their passwords and the certificates are made for it; nothing of them is used elsewhere.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer  # in Python 3.10 another than the built-in one
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ematix_flow.engine.jvm import jars
from ematix_flow.engine.jvm.java_runtime import find_java
from ematix_flow.errors import FlowError
from tests.services.certificates import ClientCertificate, make_certificates, make_client_certificate
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "kafka"
LOCK = REPOSITORY / "lock" / "services-kafka.toml"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
USER = "alice"
PASSWORD = "pa\"ss\\word; $x=1 'q"  # what a careless text of settings would break on
KEY_PASSWORD = "key-secret"
_FAST = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def find() -> Path | None:
    """The folder of the broker's jars: named by EMATIX_TEST_KAFKA_JARS, or ours."""
    named = os.environ.get("EMATIX_TEST_KAFKA_JARS")
    if named:
        if not any(Path(named).glob("kafka_*.jar")):
            raise ServiceUnavailable(f"EMATIX_TEST_KAFKA_JARS is {named}, which does not contain a broker")
        return Path(named)
    there = jars.jar_status(env=_private(), lock=jars.jar_lock(LOCK))
    return there[0].path.parent if all(jar.present for jar in there) else None


def install() -> Path:
    """Fetch the jars that the lock names, by the Ivy inside PySpark."""
    found = find()
    if found:
        return found
    try:
        return jars.fetch_jars(env=_private(), lock=jars.jar_lock(LOCK))[0].path.parent
    except FlowError as problem:
        raise ServiceUnavailable(f"Kafka could not be installed: {problem}") from problem


def _private() -> dict[str, str]:
    return {**os.environ, "EMATIX_FLOW_CACHE": str(PRIVATE)}


class KafkaServer:
    """One broker below ``folder``. Its ports, topics and users stay the same over restarts."""

    def __init__(self, jars_folder: Path, folder: Path) -> None:
        self.folder = folder
        self.cluster_id = base64.b64encode(uuid.uuid4().bytes, altchars=b"ab").decode().rstrip("=")
        self.certificates = make_certificates(folder / "tls")
        self.client_certificate = make_client_certificate(folder / "tls", "client")
        self.locked_certificate = make_client_certificate(folder / "tls", "locked", password=KEY_PASSWORD)
        self._jars = jars_folder
        self._ports: dict[str, int] = {}
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it
        self._clients: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServiceUnavailable("Kafka was not started")
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Where it listens in one of the `LISTENERS`."""
        return f"localhost:{self._ports[listener]}"

    # ------------------------------------------------------------------ the process

    def start(self) -> None:
        """Start it unless it runs; back only when this very broker answers."""
        if self.running:
            return
        for _ in range(1 if self._ports else 5):  # another process may take a free port before us
            ports = self._ports or {name: free_port() for name in (*LISTENERS, "CONTROLLER")}
            if not self._ports:
                self._format(ports)
            process = self._starter.submit(self._process_on).result()
            if self._answers(process, ports["PLAINTEXT"]):
                if not self._ports:
                    self._process, self._ports = process, ports
                    self._add_scram_user()
                self._process = process
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"Kafka did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        """Kill it, as a machine that loses its power would; what it has confirmed stays."""
        self._clients.clear()
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _process_on(self) -> ServerProcess:
        command = self._java("kafka.Kafka", str(self.folder / "server.properties"))
        return ServerProcess(command, None, self.folder / "server.log", dies_by=signal.SIGKILL)

    def _java(self, *arguments: str) -> list[str]:
        java = str(find_java(os.environ).executable)
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [java, *_FAST, logging, "-cp", f"{self._jars}/*", *arguments]

    def _format(self, ports: Mapping[str, int]) -> None:
        """A new data folder."""
        settings = self._settings(ports)
        file = self.folder / "server.properties"
        file.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
        command = self._java("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", str(file))
        done = subprocess.run([*command, "--ignore-formatted"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceUnavailable(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")

    def _settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        both = self.folder / "tls" / "server-both.pem"
        both.write_text(self.certificates.key.read_text() + self.certificates.certificate.read_text())
        plain = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f"user_{USER}={_jaas_text(PASSWORD)} user_reader={_jaas_text(PASSWORD)};"
        )
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://localhost:{ports[name]}" for name in LISTENERS),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in LISTENERS)]
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "num.partitions": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            "broker.session.timeout.ms": "1500",  # it comes back that soon after it was killed
            "broker.heartbeat.interval.ms": "300",
            "group.initial.rebalance.delay.ms": "0",
            "log.initial.task.delay.ms": "500",
            "log.retention.ms": "-1",  # a test may send a message of long ago
            "file.delete.delay.ms": "500",
            "quota.window.num": "2",  # a throttled client continues within the second
            "num.network.threads": "2",
            "num.io.threads": "4",
        }
        for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{name}.replication.factor"] = "1"
        for name in ("transaction.state.log", "share.coordinator.state.topic"):
            settings[f"{name}.min.isr"] = "1"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            at = f"listener.name.{listener}"
            settings[f"{at}.sasl.enabled.mechanisms"] = ",".join(["PLAIN", *_SCRAM])
            settings[f"{at}.plain.sasl.jaas.config"] = plain
            for name in _SCRAM:
                login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                settings[f"{at}.{name.lower()}.sasl.jaas.config"] = login
        return settings

    def _answers(self, process: ServerProcess, port: int) -> bool:
        """Whether a broker of this cluster takes requests."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"localhost:{port}", "log_level": 0, **_QUICK})
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.running:
            with suppress(KafkaException):
                there = client.list_topics(timeout=1)
                if there.cluster_id == self.cluster_id and there.brokers:
                    return True
        return False

    def _add_scram_user(self) -> None:
        """SCRAM's users are kept by the broker itself; its formatting tool would garble the password."""
        from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            user = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
            self.admin().alter_user_scram_credentials([user])[USER].result(30)

    # ------------------------------------------------------------------ clients for tests

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if "admin" not in self._clients:
            settings = {"bootstrap.servers": self.bootstrap, "log_level": 0, **_QUICK}
            self._clients["admin"] = AdminClient(settings)
        return self._clients["admin"]

    def producer(self, **settings: Any) -> Any:
        """A new producer; the caller flushes it."""
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, "linger.ms": 5, **settings})

    def create_topic(
        self, hint: str = "", partitions: int = 1, config: Mapping[str, str] | None = None, name: str = ""
    ) -> str:
        """A new topic; its name starts with what is usable of the hint, unless it is given."""
        from confluent_kafka.admin import NewTopic

        readable = re.sub(r"[^a-zA-Z0-9]+", "-", hint)[:40].strip("-")
        name = name or f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        self._asked(lambda: self.admin().create_topics([topic])[name], done="TOPIC_ALREADY_EXISTS")
        self._await_topic(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.admin().create_partitions([NewPartitions(topic, total)])[topic].result(30)
        self._await_topic(topic, total)

    def drop_topic(self, topic: str) -> None:
        self.start()  # a test may have left it down
        self._asked(lambda: self.admin().delete_topics([topic])[topic], done="UNKNOWN_TOPIC_OR_PART")
        deadline = time.monotonic() + 30
        while topic in self.admin().list_topics(timeout=10).topics and time.monotonic() < deadline:
            time.sleep(0.05)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Make the broker delete the messages before that offset, as its retention would."""
        from confluent_kafka import TopicPartition

        request = TopicPartition(topic, partition, before)
        for done in self.admin().delete_records([request]).values():
            done.result(30)

    def throttle(self, client_id: str, bytes_per_second: int) -> None:
        """Let clients that call themselves so read no faster than that, on the whole."""
        done = subprocess.run(
            self._java(
                "kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter",
                "--entity-type", "clients", "--entity-name", client_id,
                "--add-config", f"consumer_byte_rate={bytes_per_second}",
            ),
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServiceUnavailable(f"Kafka's quota could not be set:\n{done.stdout}{done.stderr}")

    def send(self, topic: str, values: Sequence[bytes | None], **each: Any) -> None:
        """Messages of these values; ``each`` goes with every one of them."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, **each)
        assert producer.flush(30) == 0

    def consume_all(self, topic: str, *, read_committed: bool = True) -> list[Any]:
        """Every message of all partitions, as readers of committed, or of all, messages see them."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "tests-looking",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "log_level": 0,
        }
        found: list[Any] = []
        with closing(Consumer(settings)) as consumer:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            open_ones = set(partitions)
            deadline = time.monotonic() + 60
            while open_ones and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(message.partition())
        assert not open_ones, f"partitions {open_ones} of {topic} have no end"
        return found

    def last_stable_offset(self, topic: str) -> int:
        """The offset in partition 0 at which a reader of committed messages stops."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partition = TopicPartition(topic, 0)
        answer = self.admin().list_offsets(
            {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return int(answer[partition].result(30).offset)

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str | None]]:
        """The offset and metadata that a consumer group has committed, by partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        answer = self.admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        found = answer.result(30).topic_partitions
        return {p.partition: (p.offset, p.metadata or None) for p in found if p.topic == topic}

    def _asked(self, ask: Callable[[], Future[Any]], done: str) -> None:
        """Make a request, and repeat it with a new client if no answer comes.

        The repetition may fail with the error ``done``: the first request had succeeded.

        If the broker is silent again, the error contains its threads.
        """
        from confluent_kafka import KafkaException

        try:
            ask().result(30)
            return
        except NoAnswer:
            self._clients.clear()
        try:
            ask().result(30)
        except KafkaException as error:
            if error.args[0].name() != done:
                raise
        except NoAnswer:
            os.kill(self.pid, signal.SIGQUIT)  # a JVM writes its threads to its log, and continues
            time.sleep(2)
            log = (self.folder / "server.log").read_text(errors="replace")
            raise ServiceUnavailable(f"Kafka runs but does not answer:\n{log[-60_000:]}") from None

    def _await_topic(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            topic = self.admin().list_topics(name, timeout=10).topics[name]
            if topic.error is None and len(topic.partitions) == partitions:
                return
            time.sleep(0.05)
        raise ServiceUnavailable(f"topic {name} does not appear")


_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_QUICK = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}


def _jaas_text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(value: str) -> str:
    """A value of a Java properties file."""
    return value.replace("\\", "\\\\")


@contextmanager
def running_server() -> Iterator[KafkaServer]:
    """A started broker in its own folder; both are removed after the block, even if it fails."""
    folder_of_jars = find()
    if folder_of_jars is None:
        raise ServiceUnavailable("Kafka is not installed: run  python -m tests.services install kafka")

    def make(folder: Path) -> KafkaServer:
        return KafkaServer(folder_of_jars, folder)

    with in_own_folder("kafka", make) as server:
        yield server


__all__ = ["ClientCertificate", "KafkaServer", "find", "install", "running_server"]
