"""What a backend fulfils to be followed by a stream, and to be sent messages by one."""
