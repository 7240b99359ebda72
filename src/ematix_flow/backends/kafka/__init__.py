"""Kafka: followed by Spark's own connector, written by librdkafka, exactly once within a cluster."""
