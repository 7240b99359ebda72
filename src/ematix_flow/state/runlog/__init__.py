"""The run log: every attempt, with its stages, counts and errors."""
