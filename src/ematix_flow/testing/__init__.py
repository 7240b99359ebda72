"""Contract suites that certify a backend, and helpers to load a target without Spark."""
