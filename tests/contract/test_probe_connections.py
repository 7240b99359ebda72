"""Connections to servers, buckets and catalogs as sources of probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.connections import (
    Connection,
    DeltaS3Connection,
    IcebergConnection,
    MySQLConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    register_connection,
)
from ematix_probe import probe
from ematix_probe.declaration import DataProbe
from tests.services.s3 import REGION
from tests.services.s3_tables import catalog_fields, create_table_bucket

if TYPE_CHECKING:
    import pyarrow as pa

Make = Callable[[pytest.FixtureRequest], Connection]


def rows() -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": [1, 2, 3], "note": ["a", None, "c"]})


def in_postgres(request: pytest.FixtureRequest) -> Connection:
    import psycopg

    url = request.getfixturevalue("pg_database")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders AS SELECT * FROM (VALUES (1, 'a'), (2, NULL), (3, 'c')) t(id, note)"
        )
    return PostgresConnection(name="shop", url=url)


def in_mariadb(request: pytest.FixtureRequest) -> Connection:
    import sqlalchemy as sa

    url = request.getfixturevalue("mariadb_database")
    engine = sa.create_engine(url.replace("mysql://", "mysql+pymysql://", 1))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id int, note text)"))
        connection.execute(sa.text("INSERT INTO orders VALUES (1, 'a'), (2, NULL), (3, 'c')"))
    engine.dispose()
    return MySQLConnection(name="shop", url=url)


def s3_files(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """pyarrow's file system of the server, and the fields of a connection to a bucket of it."""
    from pyarrow import fs

    server, bucket = request.getfixturevalue("s3"), request.getfixturevalue("s3_bucket")
    files = fs.S3FileSystem(
        access_key=server.keys.access,
        secret_key=server.keys.secret,
        endpoint_override=server.endpoint,
        region=REGION,
    )
    return files, server.connection_fields(bucket)


def in_s3(format: str) -> Make:
    def make(request: pytest.FixtureRequest) -> Connection:
        from pyarrow import csv, orc, parquet

        files, fields = s3_files(request)
        with files.open_output_stream(f"{fields['bucket']}/lake/orders/a.{format}") as out:
            if format == "parquet":
                parquet.write_table(rows(), out)
            elif format == "orc":
                orc.write_table(rows(), out)
            elif format == "csv":
                csv.write_csv(rows(), out)
            else:
                out.write(b'{"id": 1, "note": "a"}\n{"id": 2}\n{"id": 3, "note": "c"}\n')
        return ObjectStoreS3Connection(
            name="shop", format="json_lines" if format == "jsonl" else format, prefix="lake", **fields
        )

    return make


def delta_in_s3(request: pytest.FixtureRequest) -> Connection:
    import deltalake

    server, bucket = request.getfixturevalue("s3"), request.getfixturevalue("s3_bucket")
    options = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.keys.access,
        "AWS_SECRET_ACCESS_KEY": server.keys.secret,
        "AWS_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    deltalake.write_deltalake(f"s3://{bucket}/lake/orders", rows(), storage_options=options)
    return DeltaS3Connection(name="shop", prefix="lake", **server.connection_fields(bucket))


def in_a_rest_catalog(request: pytest.FixtureRequest) -> Connection:
    from pyiceberg.catalog import load_catalog

    from ematix_flow.probes import source_of

    server, bucket = request.getfixturevalue("s3"), request.getfixturevalue("s3_bucket")
    fields = catalog_fields(server, create_table_bucket(server), f"s3://{bucket}/staging")
    connection = IcebergConnection(name="shop", namespace="daily", **fields)
    found: Any = source_of(connection)
    catalog = load_catalog("made", **{**found.access.iceberg_options(), **found.properties})
    catalog.create_namespace("daily")
    catalog.create_table("daily.orders", rows().schema).append(rows())
    return connection


def in_an_iceberg_folder(request: pytest.FixtureRequest) -> Connection:
    """A table with the layout of a Hadoop catalog."""
    from pyiceberg.catalog import load_catalog

    folder = request.getfixturevalue("tmp_path")
    catalog: Any = load_catalog(
        "made", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder)
    )
    catalog.create_namespace("daily")
    location = f"file://{folder}/lake/daily/orders"
    catalog.create_table("daily.orders", rows().schema, location=location).append(rows())
    catalog.close()
    return IcebergConnection(
        name="shop", catalog_type="hadoop", warehouse=f"{folder}/lake", namespace="daily"
    )


PLACES: dict[str, Make] = {
    "postgres": in_postgres,
    "mariadb": in_mariadb,
    "s3-parquet": in_s3("parquet"),
    "s3-csv": in_s3("csv"),
    "s3-jsonl": in_s3("jsonl"),
    "s3-orc": in_s3("orc"),
    "s3-delta": delta_in_s3,
    "iceberg-rest": in_a_rest_catalog,
    "iceberg-folder": in_an_iceberg_folder,
}


def orders() -> DataProbe:
    @probe.data(source="shop", table="orders")
    def of_the_shop(t: Any) -> None:
        t.row_count(at_least=3, at_most=3)
        t.column("id").unique()
        t.column("note").not_null()

    return of_the_shop


@pytest.mark.parametrize("place", PLACES)
def test_a_probe_reads_a_table_of_the_connection(place: str, request: pytest.FixtureRequest) -> None:
    register_connection(PLACES[place](request))
    found = [(each.verdict, each.failing) for each in orders().run().assertions]
    assert found == [("pass", None), ("pass", 0), ("fail", 1)]


@pytest.mark.parametrize("place", ["postgres", "mariadb"])
def test_a_wrong_password_is_an_error_that_does_not_show_it(
    place: str, request: pytest.FixtureRequest
) -> None:
    connection = PLACES[place](request)
    fields = {"user": "nobody", "password": "wrong-pass-7", "name": "shop"}
    register_connection(type(connection)(url=connection.url, **fields))
    report = orders().run()
    assert {each.verdict for each in report.assertions} == {"error"}
    assert "cannot be reached" in report.assertions[0].message
    assert "wrong-pass-7" not in str(report.to_dict())
