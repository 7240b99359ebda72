"""What AWS services and boto3 refuse: reads their errors, and explains those of keys and certificates.

The one owner of these codes for S3, Kinesis, the Glue schema registry and Secrets Manager. What a service
refuses for its own reasons is explained in the module of that service.
"""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.errors import CannotConnect

REFUSED_KEYS = frozenset(
    {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationQueryParametersError"),
        *("UnrecognizedClientException", "InvalidSignatureException", "InvalidClientTokenId"),
        *("MissingAuthenticationTokenException", "IncompleteSignatureException"),
    }
)
EXPIRED_KEYS = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"})
ACCESS_DENIED = frozenset({"AccessDenied", "AccessDeniedException"})


def error_code(error: object) -> str:
    """The service's name for the error; empty if the service did not respond."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def error_message(error: object) -> str:
    """The service's message, or its error code if it gave none."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Message") or "").rstrip(".") or error_code(error)


def http_status(error: object) -> int:
    """The HTTP status of the response; 0 if there is none."""
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def is_unreachable(error: object) -> bool:
    """Whether the service could not be reached, or failed itself."""
    from botocore import exceptions as e

    if isinstance(error, e.SSLError):
        return False
    return isinstance(error, (e.ConnectionError, e.HTTPClientError)) or http_status(error) >= 500


@dataclass(frozen=True)
class AWSConnection:
    """How errors speak of a connection: ``service`` as in "Kinesis", ``credentials`` as in "AWS"."""

    name: str
    service: str
    credentials: str
    address: str
    keys_are_for: str  # what the keys belong to, as in "this region"
    credentials_step: str  # what to give the connection when it has no credentials
    certificate_step: str  # what to do about a certificate that is not trusted

    def keys_error(self, error: object) -> CannotConnect | None:
        """The error for keys that the service refuses or that have expired; None for any other response."""
        code, message = error_code(error), error_message(error)
        if code in REFUSED_KEYS:
            return CannotConnect(
                f"{self.service} refused the access keys of connection {self.name!r}: {message}",
                next_step="check access_key_id and secret_access_key, "
                f"and that they are for {self.keys_are_for}",
            )
        if code in EXPIRED_KEYS:
            return CannotConnect(
                f"the {self.credentials} credentials of connection {self.name!r} "
                f"are no longer valid: {message}",
                next_step="get new ones (a session token is valid for a few hours only), and run it again",
            )
        return None

    def client_error(self, error: object) -> CannotConnect | None:
        """The error for a bad certificate or missing credentials; None for any other error of the client."""
        from botocore import exceptions as e

        message = " ".join(str(error).split())
        if isinstance(error, e.SSLError):
            return CannotConnect(
                f"cannot trust the certificate of {self.address}: {message}", next_step=self.certificate_step
            )
        if isinstance(error, (e.NoCredentialsError, e.PartialCredentialsError)):
            return CannotConnect(
                f"connection {self.name!r} has no {self.credentials} credentials: no keys are given, "
                "and none are in the environment, the profile or the machine's role",
                next_step=self.credentials_step,
            )
        if isinstance(
            error, (e.ProfileNotFound, e.CredentialRetrievalError, e.TokenRetrievalError, e.SSOError)
        ):
            return CannotConnect(
                f"cannot get the {self.credentials} credentials of connection {self.name!r}: {message}",
                next_step="fix the profile, or sign in again, and run it again",
            )
        return None
