"""Opens the stores of state (run log, slots, dead letters) at a URL or a connection."""
