"""Kafka: Spark's connector plans reads, librdkafka writes; exactly once within a cluster."""
