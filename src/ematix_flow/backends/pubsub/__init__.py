"""Google Cloud Pub/Sub: subscriptions that a stream follows, and topics that it sends messages to."""
