"""RabbitMQ: reads queues, and sends messages to queues and exchanges."""
