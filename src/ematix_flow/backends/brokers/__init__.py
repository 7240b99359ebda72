"""What Kafka, RabbitMQ, Pub/Sub and Kinesis share."""
