"""RabbitMQ: queues that streams follow and send to."""
