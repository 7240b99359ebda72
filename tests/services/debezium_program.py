"""The program of a Debezium engine: follows a database's log and sends each event to Kafka.

Run as ``python debezium_program.py SETTINGS.json`` with JPype and Debezium's jars. An event counts as read
only when Kafka has it, so that a program that is killed sends some events again and leaves none out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(settings: dict[str, Any]) -> None:
    import jpype

    jpype.startJVM(*settings["java_options"], classpath=settings["jars"])
    properties = jpype.JClass("java.util.Properties")()
    for name, value in settings["properties"].items():
        properties.setProperty(name, value)
    to_kafka = jpype.JClass("java.util.Properties")()
    to_kafka.setProperty("bootstrap.servers", settings["bootstrap"])
    to_kafka.setProperty("linger.ms", "5")
    as_bytes = jpype.JClass("org.apache.kafka.common.serialization.ByteArraySerializer")()
    producer = jpype.JClass("org.apache.kafka.clients.producer.KafkaProducer")(to_kafka, as_bytes, as_bytes)
    message = jpype.JClass("org.apache.kafka.clients.producer.ProducerRecord")
    byte_array = jpype.JArray(jpype.JByte)

    def payload(value: Any) -> Any:
        if value is None or settings["format"] == "Avro":
            return value
        return byte_array(str(value).encode())

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class SendEvents:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:
            sent = []
            for record in records:
                topic = settings["topics"].get(str(record.destination()))
                if topic is not None:
                    sent.append(producer.send(message(topic, payload(record.key()), payload(record.value()))))
            for each in sent:
                each.get()
            for record in records:
                committer.markProcessed(record)
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:
            return True

    engine = jpype.JClass("io.debezium.engine.DebeziumEngine")
    kind = jpype.JClass(f"io.debezium.engine.format.{settings['format']}")
    engine.create(kind).using(properties).notifying(SendEvents()).build().run()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
