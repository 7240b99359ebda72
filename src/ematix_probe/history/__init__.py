"""The recorded runs of probes: what drift compares with, and what ``ematix-probe runs`` shows."""
