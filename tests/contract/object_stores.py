"""The object stores that can hold a run log and its slots, each with its server."""

from __future__ import annotations

from urllib.parse import quote

import pytest

OBJECTS = ("s3", "gcs", "azure")


def object_url(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of an empty place."""
    if kind == "s3":
        server, bucket = request.getfixturevalue("s3"), request.getfixturevalue("s3_bucket")
        given = {key: value for key, value in server.connection_fields(bucket).items() if key != "bucket"}
        options = "&".join(f"{key}={quote(value, safe='')}" for key, value in given.items())
        return f"s3://{bucket}/flow/runs?{options}"
    place = request.getfixturevalue("gcs_bucket" if kind == "gcs" else "azure_container")
    url: str = request.getfixturevalue(kind).url(place, "flow/runs")
    return url
