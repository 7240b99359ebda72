"""Dead letters: messages that no target took, until they are replayed or purged."""
