"""What a stream opens before Spark starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import DeltaLocalConnection, Lookup, SQLiteConnection
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.streams.open_stream import OpenStream
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import LoadError
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from tests.stream_runs import stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_starts_with_the_jars_of_a_lookup(tmp_path: Path) -> None:
    wanted: list[str] = []

    def start(jar_groups: Sequence[str]) -> SparkSession:
        wanted.extend(jar_groups)
        raise LoadError("Spark is not needed here")

    spec = stream(
        source=ObjectStoreLocalConnection(name="files", path=str(tmp_path), format="csv"),
        source_query="incoming",
        target=SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")),
        target_table="joined",
        transform_sql="SELECT * FROM source JOIN names USING (id)",
        lookups={"names": Lookup(DeltaLocalConnection(name="lake", path=str(tmp_path)), table="names")},
    ).spec
    opened = OpenStream(
        spec, Connections(start, lambda error, what: LoadError(what), lambda *_: None), StreamFolder(tmp_path)
    )
    with pytest.raises(LoadError):
        opened.connections.spark()
    assert "delta" in wanted
