"""The demo's story: what it writes, runs, changes and shows."""
