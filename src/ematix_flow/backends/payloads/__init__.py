"""Payloads of messages: JSON, raw bytes, Avro and Protobuf, with and without a registry."""
