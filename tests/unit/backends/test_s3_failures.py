"""Refusals of an S3 server as errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, SSLError

from ematix_flow.backends.stores.s3_failures import translate_errors
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, TargetFailed
from ematix_flow.spec.connections import ObjectStoreS3Connection

LAKE = ObjectStoreS3Connection(name="lake", bucket="company", region="us-east-1", endpoint="https://s3.local")


def told(error: Exception, *, reaching: bool = False) -> FlowError:
    with pytest.raises(FlowError) as raised, translate_errors(LAKE, "to write x", reaching=reaching):
        raise error
    return raised.value


def refusal(code: str, status: int = 400, message: str = "no.", **headers: str) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    return ClientError(response, "PutObject")


@pytest.mark.parametrize(
    ("error", "what", "step"),
    [
        (refusal("SignatureDoesNotMatch", 403), "refused the access keys", "secret_access_key"),
        (refusal("InvalidAccessKeyId", 403), "refused the access keys", "access_key_id"),
        (refusal("ExpiredToken"), "no longer valid", "get new ones"),
        (refusal("NoSuchBucket", 404), "no bucket 'company'", "create it"),
        (
            refusal("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-west-1"}),
            "is in region eu-west-1, and connection 'lake' expects it in us-east-1",
            'region = "eu-west-1"',
        ),
        (refusal("AuthorizationHeaderMalformed"), "in another region", "region ="),
        (refusal("RequestTimeTooSkewed", 403), "because of its time", "clock"),
        (refusal("AccessDenied", 403), "does not allow the user of connection 'lake' to write x", "right"),
        (
            SSLError(endpoint_url="https://s3.local", error="self-signed"),
            "cannot trust the certificate",
            "ca_cert_path",
        ),
        (NoCredentialsError(), "no S3 credentials", "anonymous = true"),
    ],
)
def test_what_keeps_a_connection_from_working_is_reported_with_its_remedy(
    error: Exception, what: str, step: str
) -> None:
    found = told(error)
    assert isinstance(found, CannotConnect)
    assert what in found.what
    assert step in (found.next_step or "")


def test_a_server_that_fails_in_mid_load_fails_the_load_and_one_that_is_not_there_the_connection() -> None:
    slow = refusal("SlowDown", 503, "Please reduce your request rate.")
    assert isinstance(told(slow), TargetFailed)
    assert "503 SlowDown: Please reduce" in told(slow).what
    assert isinstance(told(slow, reaching=True), CannotConnect)
    gone = EndpointConnectionError(endpoint_url="https://s3.local", error="refused")
    assert isinstance(told(gone), TargetFailed)
    assert isinstance(told(gone, reaching=True), CannotConnect)


def test_a_missing_client_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="boto3") as raised:
        S3Store(LAKE)
    assert "ematix-flow-spark[s3]" in (raised.value.next_step or "")


def test_a_connection_says_either_who_it_is_or_that_it_is_nobody() -> None:
    with pytest.raises(FlowError, match="anonymous or credentials"):
        ObjectStoreS3Connection(name="lake", bucket="b", profile="work", anonymous=True)
