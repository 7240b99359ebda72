"""``${aws:…}`` against moto's emulator, ``${gcp:…}`` against one of ours: Amazon and Google offer none."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import boto3
import grpc
import pytest

from ematix_flow.errors import CannotConnect, ConfigError, FlowError
from ematix_flow.secrets import (
    AWSSecretsManagerResolver,
    GCPSecretManagerResolver,
    MissingSecretError,
    expand,
    register_resolver,
    unregister_resolver,
)
from tests.contract.secret_manager_fake import FakeSecretManager, fake_secret_manager
from tests.services.glue import REGION, GlueServer

PASSWORD = "the-password-of-the-warehouse"
SECRET = json.dumps({"password": PASSWORD, "username": "warehouse_loader", "port": 5432, "note": None})


@pytest.fixture
def aws(glue: GlueServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the emulator, which the environment leads to as well."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", glue.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = boto3.client("secretsmanager")
    made = [
        client.create_secret(Name="prod/db", SecretString=SECRET),
        client.create_secret(Name="plain", SecretString="hunter2 hunter2"),
        client.create_secret(Name="bytes", SecretBinary=b"from bytes"),
        client.create_secret(Name="picture", SecretBinary=b"\xff\xd8\xff"),
    ]
    yield client
    for secret in made:
        client.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)


def test_aws_gives_a_secret_or_a_field_of_it(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = AWSSecretsManagerResolver()
    assert resolver.resolve("prod/db#password") == PASSWORD
    assert resolver.resolve("prod/db#port") == "5432"
    assert resolver.resolve("prod/db") == SECRET
    assert resolver.resolve("plain") == "hunter2 hunter2"
    assert resolver.resolve("bytes") == "from bytes"
    assert AWSSecretsManagerResolver(aws).resolve("plain") == "hunter2 hunter2"
    arn = aws.describe_secret(SecretId="prod/db")["ARN"]
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert AWSSecretsManagerResolver().resolve(f"{arn}#password") == PASSWORD


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere", "the secret aws:nowhere is not there"),
        ("prod/db#pasword", "the field 'pasword' .* Did you mean 'password'?"),
        ("prod/db#note", "the field 'note' of the secret aws:prod/db is null"),
        ("plain#password", "is not a JSON object, so it has no field 'password'"),
        ("picture", "is binary"),
        ("#password", "names no secret"),
    ],
)
def test_aws_says_what_is_not_there_and_shows_no_value(aws: Any, reference: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        AWSSecretsManagerResolver().resolve(reference)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not any("hunter2" in repr(error) or PASSWORD in repr(error) for error in chain)


def test_aws_says_when_a_region_or_a_login_is_missing(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="no login for AWS") as caught:
        AWSSecretsManagerResolver().resolve("plain")
    assert "AWS_PROFILE" in str(caught.value)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="in which region"):
        AWSSecretsManagerResolver().resolve("plain")


@pytest.mark.parametrize("listens", [True, False], ids=["that hangs", "that is not there"])
def test_an_aws_endpoint(aws: Any, monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    from ematix_flow.config.secret_stores import aws as module

    monkeypatch.setattr(module, "READ_SECONDS", 0.3)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        address = f"http://me:for-my-eyes@127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", address)
        with pytest.raises(CannotConnect, match="AWS Secrets Manager cannot be reached") as caught:
            AWSSecretsManagerResolver().resolve("plain")
    assert "for-my-eyes" not in str(caught.value)


@pytest.fixture
def gcp() -> Iterator[FakeSecretManager]:
    with fake_secret_manager() as fake:
        fake.versions = {
            "projects/p/secrets/db/versions/latest": SECRET.encode(),
            "projects/p/secrets/db/versions/3": b"the third",
            "projects/q/secrets/db/versions/latest": "schlüssel".encode(),
            "projects/p/secrets/off/versions/latest": grpc.StatusCode.FAILED_PRECONDITION,
            "projects/p/secrets/closed/versions/latest": grpc.StatusCode.PERMISSION_DENIED,
            "projects/p/secrets/picture/versions/latest": b"\xff\xd8\xff",
        }
        yield fake


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("db", SECRET),
        ("db#password", PASSWORD),
        ("db#latest", SECRET),
        ("db#3", "the third"),
        ("projects/p/secrets/db/versions/3", "the third"),
        ("projects/p/secrets/db/versions/latest#password", PASSWORD),
        ("projects/q/secrets/db", "schlüssel"),
    ],
)
def test_gcp_gives_a_version_or_a_field_of_it(gcp: FakeSecretManager, reference: str, value: str) -> None:
    assert GCPSecretManagerResolver(gcp.client(), project="p").resolve(reference) == value


def test_gcp_takes_the_project_of_the_environment(
    gcp: FakeSecretManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="is a short name: in which project"):
        GCPSecretManagerResolver(gcp.client()).resolve("db")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "q")
    resolver = GCPSecretManagerResolver(gcp.client())
    assert [resolver.resolve("db"), resolver.resolve("db")] == ["schlüssel"] * 2
    assert gcp.asked == ["projects/q/secrets/db/versions/latest"]


@pytest.mark.parametrize(
    ("reference", "kind", "words"),
    [
        ("nowhere", MissingSecretError, "gcp:nowhere or its version is not there"),
        ("db#7", MissingSecretError, "gcp:db/versions/7 or its version is not there"),
        ("off", ConfigError, "gcp:off could not be read"),
        ("closed", ConfigError, "does not let us read the secret gcp:closed"),
        ("picture", ConfigError, "is binary"),
        ("projects/p/db", ConfigError, "is not the name of a secret"),
    ],
)
def test_gcp_says_what_is_wrong(
    gcp: FakeSecretManager, reference: str, kind: type[FlowError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        GCPSecretManagerResolver(gcp.client(), project="p").resolve(reference)


def test_gcp_that_hangs_or_is_gone_is_reported(
    gcp: FakeSecretManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.config.secret_stores import gcp as module

    monkeypatch.setattr(module, "READ_SECONDS", 0.3)
    gcp.hanging.set()
    with pytest.raises(CannotConnect, match="Google Secret Manager does not answer"):
        GCPSecretManagerResolver(gcp.client(), project="p").resolve("db")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gcp.endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(CannotConnect, match="Google Secret Manager does not answer"):
            GCPSecretManagerResolver(gcp.client(), project="p").resolve("db")


def test_gcp_without_a_login_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "not-there.json")
    with pytest.raises(ConfigError, match="no login for Google Cloud") as caught:
        expand("${gcp:projects/p/secrets/s}")
    assert "gcloud auth application-default login" in str(caught.value)


def test_what_a_store_gave_is_masked_from_then_on(aws: Any, gcp: FakeSecretManager) -> None:
    assert expand("${aws:prod/db#username}:${aws:prod/db#password}") == f"warehouse_loader:{PASSWORD}"
    register_resolver("gcp", GCPSecretManagerResolver(gcp.client(), project="p"))
    try:
        assert expand("${gcp:db#3}") == "the third"
    finally:
        unregister_resolver("gcp")
    said = str(FlowError(f"refused: warehouse_loader with {PASSWORD} or the third"))
    assert said == "refused: warehouse_loader with *** or ***"


def test_of_a_whole_secret_each_value_is_masked(aws: Any) -> None:
    aws.put_secret_value(SecretId="plain", SecretString='{"api": "value-of-api", "host": "db.example"}')
    expand("${aws:plain}")
    assert str(FlowError("value-of-api at db.example")) == "*** at db.example"
