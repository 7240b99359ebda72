"""The contracts of backends that a stream reads from or sends messages to."""
