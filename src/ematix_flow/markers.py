"""What users import to mark columns: ``from ematix_flow.markers import pk``."""

from __future__ import annotations

from ematix_flow.api.markers import natural_key, nullable, pk

__all__ = ["natural_key", "nullable", "pk"]
