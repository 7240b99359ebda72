"""Message payloads: JSON, raw bytes, Avro and Protobuf, with and without a schema registry."""
