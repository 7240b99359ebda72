"""The command line of probes: ``ematix-probe``, and ``flow probe``."""
