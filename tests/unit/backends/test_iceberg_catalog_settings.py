"""An Iceberg connection as a catalog: its name and settings, the location of files, and reserved names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import IcebergConnection
from ematix_flow.backends.iceberg.catalog_settings import catalog_name, catalog_settings, storage_settings
from ematix_flow.backends.iceberg.dialect import IcebergDialect, can_widen
from ematix_flow.backends.iceberg.table_format import IcebergFormat
from ematix_flow.backends.iceberg.table_names import Namespaces, may_mean_metadata
from ematix_flow.backends.iceberg.warehouse import open_store, spark_warehouse
from ematix_flow.backends.lake.direct_table import SparkNeeded
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import CannotConnect, PlanError
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

BY_SPARK = SparkNeeded("a test")
KEYS = {"access_key_id": "AK", "secret_access_key": "SK-secret"}


def rest(**fields: Any) -> IcebergConnection:
    return IcebergConnection(**{"name": "lake", "uri": "https://catalog/api", **fields})


def folder(place: str, **fields: Any) -> IcebergConnection:
    return IcebergConnection(**{"name": "lake", "catalog_type": "hadoop", "warehouse": place, **fields})


# ------------------------------------------------------------------ names of catalogs


@pytest.mark.parametrize("name", ["lake", "my lake", "a.b", "`x`", "spark_catalog", "ü", "1", "x" * 200])
def test_a_catalog_has_a_name_that_sql_takes_and_that_stays(name: str) -> None:
    first = catalog_name(rest(name=name))
    assert re.fullmatch(r"iceberg_[A-Za-z0-9_]+", first)
    assert catalog_name(rest(name=name)) == first


def test_other_settings_under_one_name_are_another_catalog() -> None:
    names = [catalog_name(rest(name="renewed", token=token)) for token in ("one", "two", "one")]
    assert names == ["iceberg_renewed", "iceberg_renewed_2", "iceberg_renewed"]
    assert catalog_name(rest(name="a b")) != catalog_name(rest(name="a.b", token="t"))


def test_the_same_names_in_two_namespaces_of_a_catalog_are_two_tables() -> None:
    one, two, same = (open_backend(folder("/lake", namespace=n)).identity() for n in ("a", "b", "a"))
    assert one == same != two


# ------------------------------------------------------------------ settings


def test_a_rest_catalog_gets_its_address_and_the_server_of_tokens() -> None:
    told = catalog_settings(rest(credential="id:secret", warehouse="prod"))
    assert told["type"] == "rest"
    assert told["uri"] == "https://catalog/api"
    assert told["warehouse"] == "prod"
    assert told["oauth2-server-uri"] == "https://catalog/api/v1/oauth/tokens"
    assert not any("s3" in key for key in told), "nothing says that files lie in S3"
    given = rest(
        credential="id:secret", properties={"oauth2-server-uri": "https://login/token", "scope": "all"}
    )
    assert catalog_settings(given)["oauth2-server-uri"] == "https://login/token"
    assert catalog_settings(given)["scope"] == "all"


def test_keys_serve_every_bucket_that_the_catalog_names() -> None:
    told = catalog_settings(rest(region="eu-central-1", **KEYS))
    assert told["hadoop.fs.s3a.secret.key"] == "SK-secret"
    assert told["hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert told["hadoop.fs.s3.impl"].endswith("S3AFileSystem")
    assert not any("bucket" in key for key in told)


def test_properties_have_the_last_word() -> None:
    told = catalog_settings(rest(properties={"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}))
    assert told["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"


def test_a_jdbc_catalog_gets_user_and_password() -> None:
    connection = IcebergConnection(
        name="j", catalog_type="jdbc", uri="jdbc:postgresql://h/d", warehouse="/w", credential="u:p:w"
    )
    told = catalog_settings(connection)
    assert (told["jdbc.user"], told["jdbc.password"]) == ("u", "p:w")
    assert "credential" not in told


def test_settings_of_staging_are_none_that_spark_writes_down() -> None:
    conf = storage_settings(rest(warehouse="prod", staging="s3://aside/flow", **KEYS))
    assert conf["fs.s3a.bucket.aside.secret.key"] == "SK-secret"
    assert not any(key.startswith("spark.") for key in conf)
    assert storage_settings(folder("/data/lake")) == {}


# ------------------------------------------------------------------ places


@pytest.mark.parametrize(
    ("given", "told", "root"),
    [
        ("/data/lake", "file:/data/lake", "/data/lake"),
        ("file:///data/my%20lake", "file:/data/my lake", "/data/my lake"),
        ("file:/data/lake/", "file:/data/lake", "/data/lake"),
    ],
)
def test_a_folder_is_one_of_this_machine(given: str, told: str, root: str) -> None:
    assert spark_warehouse(folder(given)) == told
    assert open_store(folder(given)) == LocalStore(root)


def test_a_relative_folder_is_below_where_the_program_runs(tmp_path: Path) -> None:
    assert open_store(folder("lake")) == LocalStore(str(tmp_path / "lake"))


def test_a_bucket_is_a_store_with_the_connections_keys() -> None:
    store = open_store(folder("s3://b/a/lake", endpoint="http://localhost:1", **KEYS))
    assert repr(store) == "S3Store(s3a://b/a/lake)"
    assert spark_warehouse(folder("s3://b/a/lake")) == "s3a://b/a/lake"
    assert spark_warehouse(rest(warehouse="s3://b/a/lake")) == "s3://b/a/lake", (
        "a server has its own meaning of it"
    )


@pytest.mark.parametrize("place", ["prod", "arn:aws:s3tables:eu:1:bucket/x", "gs://b/x", ""])
def test_a_warehouse_that_is_no_folder_and_no_bucket_holds_no_store(place: str) -> None:
    assert open_store(rest(warehouse=place)) is None
    assert open_store(rest(warehouse=place, staging="/aside")) == LocalStore("/aside")


def test_a_folder_is_looked_at_and_a_stranger_refused(tmp_path: Path) -> None:
    told = open_backend(folder(str(tmp_path))).check()
    assert told == f"Iceberg catalog (hadoop), files in {tmp_path}"
    hive = IcebergConnection(name="h", catalog_type="hive", uri="thrift://127.0.0.1:1")
    with pytest.raises(CannotConnect, match="no metastore answers"):
        open_backend(hive).check()


# ------------------------------------------------------------------ names of tables


def test_a_name_is_quoted_level_by_level() -> None:
    names = Namespaces("c", ("a.b",))
    path = names.full_path(("we`ird", "ta.ble"))
    assert names.quoted_name(path) == "`c`.`a.b`.`we``ird`.`ta.ble`"
    assert names.table_expression(path).sql(dialect="spark") == names.quoted_name(path)
    bare = Namespaces("c", needed=False)
    assert bare.table_expression(bare.full_path(("t",))).sql(dialect="spark") == "`c`.`t`"


@pytest.mark.parametrize(
    ("name", "why"),
    [("a/b", "slash"), ("a/", "slash"), ("..", "out of"), (".x", "hidden"), ("a\x1fb", "control")],
)
def test_a_name_that_would_lead_elsewhere_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Namespaces("c").full_path(("ns", name))


def test_a_catalog_that_keeps_tables_in_namespaces_wants_one(tmp_path: Path) -> None:
    format = IcebergFormat(Namespaces("c"), LocalStore(str(tmp_path)), journals="w", direct=BY_SPARK)
    with pytest.raises(PlanError, match="in no namespace"):
        format.table_expression(TableSpec(None, "t", (ColumnSpec("id", DataType("big_int")),)))


def test_names_of_metadata_are_known() -> None:
    assert all(map(may_mean_metadata, ("snapshots", "Files", "branch_x", "at_timestamp_1", "snapshot_id_1")))
    assert not any(map(may_mean_metadata, ("orders", "snapshot", "branch", "at_timestamp_x")))


# ------------------------------------------------------------------ types and conflicts


def test_a_small_integer_is_stored_as_an_integer() -> None:
    dialect = IcebergDialect()
    assert dialect.native_type(DataType("small_int")) == "INT"
    assert dialect.can_hold(DataType("small_int"), DataType("integer"), "INT")
    assert not dialect.can_hold(DataType("big_int"), DataType("integer"), "INT")


@pytest.mark.parametrize(
    ("live", "declared", "can"),
    [
        (DataType("integer"), DataType("big_int"), True),
        (DataType("float"), DataType("double"), True),
        (DataType("numeric", precision=5, scale=2), DataType("numeric", precision=9, scale=2), True),
        (DataType("numeric", precision=5, scale=2), DataType("numeric", precision=9, scale=3), False),
        (DataType("integer"), DataType("numeric", precision=20, scale=0), False),
    ],
)
def test_iceberg_widens_some_types(live: DataType, declared: DataType, can: bool) -> None:
    assert can_widen(live, declared) is can


@pytest.mark.parametrize(
    ("told", "conflict"),
    [
        (
            "org.apache.iceberg.exceptions.CommitFailedException: Version 4 already exists: v4.metadata.json",
            True,
        ),
        (
            "Caused by: org.apache.iceberg.exceptions.ValidationException: Found conflicting files",
            True,
        ),
        (
            "org.apache.iceberg.exceptions.ValidationException: Missing required files to delete: f.parquet",
            True,
        ),
        ("org.apache.iceberg.exceptions.ValidationException: Cannot add required column", False),
        ("CommitStateUnknownException: timeout\nCaused by: CommitFailedException: 409", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_only_what_surely_did_nothing_is_tried_again(tmp_path: Path, told: str, conflict: bool) -> None:
    format = IcebergFormat(Namespaces("c"), LocalStore(str(tmp_path)), journals=None, direct=BY_SPARK)
    assert format.is_conflict(RuntimeError(told)) is conflict
