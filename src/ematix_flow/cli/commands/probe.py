"""``flow probe``: the commands of ``ematix-probe``, with the connections of this project."""

from __future__ import annotations

from ematix_probe.cli.app import app as app
