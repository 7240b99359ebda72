"""The probes as tests of pytest: each assertion is one, and each probe runs once."""

from checks import countries, customers, orders

__all__ = ["countries", "customers", "orders"]
