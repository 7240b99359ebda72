"""Errors of boto3, explained alike for every service of AWS."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ProfileNotFound,
    SSLError,
)

from ematix_flow.aws.errors import AWSConnection, error_code, error_message, http_status, is_unreachable

EVENTS = AWSConnection(
    name="events",
    service="Kinesis",
    credentials="AWS",
    address="AWS, region eu-west-1",
    keys_are_for="this region",
    credentials_step="give it a profile",
    certificate_step="name its authority",
)


def refusal(code: str, status: int = 400, message: str = "no.") -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "GetRecords")


def test_code_message_and_status_are_read_from_a_response_and_are_empty_without_one() -> None:
    error = refusal("Throttling", 429, "Slow down.")
    assert (error_code(error), error_message(error), http_status(error)) == ("Throttling", "Slow down", 429)
    assert error_message(refusal("Throttling", message="")) == "Throttling"
    assert (error_code(ValueError()), error_message(None), http_status(ValueError())) == ("", "", 0)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SignatureDoesNotMatch", "Kinesis refused the access keys of connection 'events': no"),
        ("UnrecognizedClientException", "Kinesis refused the access keys of connection 'events': no"),
        ("ExpiredTokenException", "the AWS credentials of connection 'events' are no longer valid: no"),
    ],
)
def test_bad_and_expired_keys_are_explained_by_their_code(code: str, words: str) -> None:
    found = EVENTS.keys_error(refusal(code))
    assert found is not None
    assert found.what == words


def test_another_refusal_is_left_to_the_service() -> None:
    assert EVENTS.keys_error(refusal("ResourceNotFoundException")) is None


@pytest.mark.parametrize(
    ("error", "words", "step"),
    [
        (
            SSLError(endpoint_url="https://k", error="self-signed"),
            "cannot trust the certificate of AWS, region eu-west-1",
            "name its authority",
        ),
        (NoCredentialsError(), "connection 'events' has no AWS credentials", "give it a profile"),
        (ProfileNotFound(profile="x"), "cannot get the AWS credentials of connection 'events'", "sign in"),
    ],
)
def test_certificates_and_missing_credentials_are_explained(error: Exception, words: str, step: str) -> None:
    found = EVENTS.client_error(error)
    assert found is not None
    assert words in found.what
    assert step in str(found.next_step)


def test_a_service_that_is_away_or_fails_is_unreachable_and_a_bad_certificate_is_not() -> None:
    away = EndpointConnectionError(endpoint_url="https://k")
    assert EVENTS.client_error(away) is None
    assert is_unreachable(away)
    assert is_unreachable(refusal("InternalFailure", 500))
    assert not is_unreachable(refusal("AccessDenied", 403))
    assert not is_unreachable(SSLError(endpoint_url="https://k", error="self-signed"))
