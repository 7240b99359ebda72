"""Spark on a bucket: what its own readers and writers do there, and that no secret of it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.backends.stores.s3a_settings import s3a_settings
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.spark.storage_settings import apply_storage_settings
from ematix_flow.errors import CannotConnect, FlowError, Unsupported
from ematix_flow.spec.connections import ObjectStoreS3Connection
from tests.services.s3 import OPEN_BUCKET, S3Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connection(server: S3Server, bucket: str, **more: Any) -> ObjectStoreS3Connection:
    fields: dict[str, Any] = {**server.connection_fields(bucket), **more}
    return ObjectStoreS3Connection(name="lake", **fields)


def told(spark: SparkSession, found: ObjectStoreS3Connection, **more: str) -> SparkSession:
    session = spark.newSession()
    for key, value in s3a_settings(found).items():
        session.conf.set(key, value)
    for name, value in more.items():
        session.conf.set(f"fs.s3a.bucket.{found.bucket}.{name.replace('_', '.')}", value)
    return session


def test_files_are_written_in_parts_read_replaced_and_listed(
    spark: SparkSession, s3: S3Server, s3_bucket: str
) -> None:
    own = told(spark, connection(s3, s3_bucket), multipart_size="5M", fast_upload_buffer="bytebuffer")
    where = f"s3a://{s3_bucket}/some/numbers"
    own.range(600_000).selectExpr("id", "uuid() AS text").coalesce(1).write.parquet(where)
    assert own.read.parquet(where).count() == 600_000
    sizes = [
        entry["Size"]
        for entry in s3.client().list_objects_v2(Bucket=s3_bucket, Prefix="some/numbers/part-")["Contents"]
    ]
    assert max(sizes) > 10 * 1024 * 1024, "too small to have been written in parts"
    own.range(9).selectExpr("id", "id % 3 AS third").write.mode("overwrite").partitionBy("third").json(where)
    assert sorted(r.id for r in own.read.json(where).where("third = 1").collect()) == [1, 4, 7]
    assert {key.split("/")[2] for key in s3.keys_in(s3_bucket, "some/numbers/third")} == {
        "third=0",
        "third=1",
        "third=2",
    }


def test_a_public_bucket_is_read_without_keys(spark: SparkSession, s3: S3Server) -> None:
    with s3.open_bucket() as bucket:
        s3.client().put_object(Bucket=bucket, Key="names.csv", Body=b"name\nAda\n")
        anybody = connection(s3, bucket, access_key_id="", secret_access_key="", anonymous=True)
        own = told(spark, anybody)
        assert (
            own.read.option("header", True).csv(f"s3a://{OPEN_BUCKET}/names.csv").collect()[0].name == "Ada"
        )


def test_a_bucket_with_new_settings_is_opened_again(
    spark: SparkSession, s3: S3Server, s3_bucket: str
) -> None:
    """Java keeps a file system open with the keys of then: another endpoint, or newer keys, must count."""
    found = connection(s3, s3_bucket)
    s3.client().put_object(Bucket=s3_bucket, Key="names.csv", Body=b"name\nAda\n")
    own, where = spark.newSession(), f"s3a://{s3_bucket}/names.csv"
    apply_storage_settings(own, s3a_settings(replace(found, secret_access_key="an old one")))
    with pytest.raises(Exception, match=r"(?i)forbidden|denied|signature"):
        own.read.csv(where).collect()
    apply_storage_settings(own, s3a_settings(found))
    assert own.read.option("header", True).csv(where).collect()[0].name == "Ada"
    apply_storage_settings(
        own, s3a_settings(ObjectStoreS3Connection(name="amazon", bucket=s3_bucket, anonymous=True))
    )
    now = own._jsparkSession.sessionState().newHadoopConf()
    for name in ("endpoint", "connection.ssl.enabled", "endpoint.region", "secret.key"):
        assert now.get(f"fs.s3a.bucket.{s3_bucket}.{name}") is None


def test_an_authority_that_the_user_names_is_trusted(spark: SparkSession) -> None:
    with running_server(tls=True) as server:
        bucket = server.create_bucket("tls")
        server.client().put_object(Bucket=bucket, Key="names.csv", Body=b"name\nAda\n")
        assert server.certificates is not None
        authority = str(server.certificates.authority)
        found = connection(server, bucket, endpoint=server.secure_endpoint, ca_cert_path=authority)
        own, where = spark.newSession(), f"s3a://{bucket}"
        apply_storage_settings(own, s3a_settings(found))
        rows = own.read.option("header", True).csv(f"{where}/names.csv")
        assert rows.collect()[0].name == "Ada"
        rows.write.parquet(f"{where}/copied")
        assert own.read.parquet(f"{where}/copied").count() == 1


def test_two_connections_that_mean_different_things_by_one_bucket_are_refused() -> None:
    one = ObjectStoreS3Connection(name="one", bucket="data", endpoint="http://localhost:1", anonymous=True)
    world = Connections(lambda groups: None, lambda error, what: FlowError(what), lambda session, conf: None)  # type: ignore[arg-type,return-value]
    world.backend(one)
    world.backend(replace(one, name="same", prefix="elsewhere"))
    world.spark()
    world.backend(replace(one, name="other", endpoint="http://localhost:2"))
    with pytest.raises(Unsupported, match=r"connection 'other' .*bucket\.data\.endpoint"):
        world.spark()


def test_a_connection_may_leave_the_region_to_another_of_the_same_bucket() -> None:
    one = ObjectStoreS3Connection(name="one", bucket="data", anonymous=True, region="eu-west-1")
    told: list[Mapping[str, str]] = []
    world = Connections(
        lambda groups: None, lambda error, what: FlowError(what), lambda session, conf: told.append(conf)
    )  # type: ignore[arg-type,return-value]
    for connection in (replace(one, name="none", region=""), one):
        world.backend(connection)
    world.spark()
    assert "eu-west-1" in told[-1].values()
    world.backend(replace(one, name="other", region="us-east-1"))
    with pytest.raises(Unsupported, match=r"endpoint\.region"):
        world.spark()


@pytest.mark.parametrize("first", ["minio", "amazon"])
def test_a_connection_without_an_endpoint_means_another_bucket_than_one_with_it(first: str) -> None:
    amazon = ObjectStoreS3Connection(name="amazon", bucket="data", anonymous=True, path_style=True)
    minio = replace(amazon, name="minio", endpoint="http://localhost:1")
    world = Connections(lambda groups: None, lambda error, what: FlowError(what), lambda session, conf: None)  # type: ignore[arg-type,return-value]
    for connection in (minio, amazon) if first == "minio" else (amazon, minio):
        world.backend(connection)
    with pytest.raises(
        Unsupported, match=r"different settings for the same place .*bucket\.data\.endpoint\)"
    ):
        world.spark()


def test_settings_are_of_one_bucket_and_follow_the_connection() -> None:
    given = {"name": "lake", "bucket": "b.with.dots", "prefix": "p", "region": "eu-central-1"}
    conf = s3a_settings(ObjectStoreS3Connection(**given, access_key_id="AK", secret_access_key="SK"))
    start = "fs.s3a.bucket.b.with.dots."
    assert all(key.startswith(start) for key in conf)
    assert conf[start + "path.style.access"] == "false"
    assert conf[start + "endpoint.region"] == "eu-central-1"
    assert start + "endpoint" not in conf
    assert conf[start + "aws.credentials.provider"].endswith("SimpleAWSCredentialsProvider")
    temporary = ObjectStoreS3Connection(
        **given, access_key_id="AK", secret_access_key="SK", session_token="TK", requester_pays=True
    )
    conf = s3a_settings(temporary)
    assert conf[start + "session.token"] == "TK"
    assert conf[start + "aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    assert conf[start + "requester.pays.enabled"] == "true"
    conf = s3a_settings(ObjectStoreS3Connection(**given, endpoint="https://s3.amazonaws.com"))
    assert start + "endpoint" not in conf
    assert conf[start + "aws.credentials.provider"].endswith("DefaultCredentialsProvider")
    conf = s3a_settings(ObjectStoreS3Connection(**given, endpoint="http://localhost:9000"))
    assert conf[start + "endpoint"] == "http://localhost:9000"
    assert conf[start + "path.style.access"] == "true"
    assert conf[start + "connection.ssl.enabled"] == "false"
    with pytest.raises(Unsupported, match="verify_tls"):
        s3a_settings(ObjectStoreS3Connection(**given, verify_tls=False))
    with pytest.raises(CannotConnect, match="cannot get the S3 credentials"):
        s3a_settings(ObjectStoreS3Connection(**given, profile="missing"))


_WATCHED = """
import dataclasses, json, sys, urllib.request
from pathlib import Path
from ematix_flow.backends.stores.s3a_settings import s3a_settings
from ematix_flow.engine.jvm.cache_folder import spark_log
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.session import spark_session, stop_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.spec.connections.base import connection_from_json

given = json.loads(sys.stdin.read())
connection, events = connection_from_json(given["connection"]), Path(given["events"])
conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
conf["spark.eventLog.dir"] = events.as_uri()
spark = spark_session(EngineSettings.resolve(env={}, config={"engine": {"conf": conf}}), jar_groups=("s3",))
for key, value in s3a_settings(connection).items():
    spark.conf.set(key, value)
temporary = dataclasses.replace(connection, bucket="elsewhere", session_token="token-canary")
for key, value in s3a_settings(temporary).items():
    spark.conf.set(key, value)
seen = {}
where = f"s3a://{connection.bucket}/watched"
spark.range(10).write.parquet(where)
frame = spark.read.parquet(where).groupBy("id").count()
frame.collect()
seen["explain"] = frame._jdf.queryExecution().toString()
told = {**s3a_settings(connection), **s3a_settings(temporary)}
for statement in ("SET", "SET -v", *(f"SET `{key}`" for key in told)):
    seen[statement] = str(spark.sql(statement).collect())
try:
    spark.read.parquet(where + "/nothing")
except Exception as error:
    seen["missing"] = str(translate_spark_error(error, what="reading")) + str(error)
spark.conf.set(f"fs.s3a.bucket.{connection.bucket}.endpoint", "http://127.0.0.1:1")
application = spark.sparkContext.uiWebUrl + "/api/v1/applications/" + spark.sparkContext.applicationId
for page in ("environment", "sql", "jobs", "executors"):
    with urllib.request.urlopen(f"{application}/{page}") as answer:
        seen["page " + page] = answer.read().decode()
stop_session()
for file in events.rglob("*"):
    if file.is_file():
        seen["event log"] = seen.get("event log", "") + file.read_text()
seen["log"] = spark_log().read_text()
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_no_secret_of_a_bucket_shows_in_spark(s3: S3Server, s3_bucket: str, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    given = {"connection": connection(s3, s3_bucket).to_json(reveal=True), "events": str(events)}
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EMATIX_FLOW_SPARK_UI": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {"explain", "SET", "event log", "page environment", "missing"} <= set(seen)
    assert f"fs.s3a.bucket.{s3_bucket}.secret.key" in seen["SET"], "it looks where the secret is"
    for what, text in {**seen, "stdout": done.stdout, "stderr": done.stderr}.items():
        assert s3.keys.secret not in text, f"the secret shows in {what}"
        assert s3.keys.access not in text, f"the access key shows in {what}"
        assert "token-canary" not in text, f"the session token shows in {what}"
