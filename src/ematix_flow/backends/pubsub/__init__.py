"""Google Cloud Pub/Sub: reads subscriptions, and sends messages to topics."""
