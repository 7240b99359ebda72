"""``${aws:name#field}``: AWS Secrets Manager, by way of ``boto3`` and its credential chain."""

from __future__ import annotations

from typing import Any, NoReturn

from ematix_flow.aws.errors import (
    ACCESS_DENIED,
    EXPIRED_KEYS,
    REFUSED_KEYS,
    error_code,
    error_message,
    http_status,
)
from ematix_flow.config.secret_stores.base import (
    CONNECT_SECONDS,
    READ_SECONDS,
    Secret,
    SecretStore,
    import_client,
)
from ematix_flow.errors import CannotConnect, ConfigError, MissingSecret

Client = Any  # boto3 has no types

_LOGIN = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and its secret, or give this machine a role"
_EXPIRED_LOGIN = EXPIRED_KEYS | {"RequestExpired"}


class AWSSecretsManagerResolver(SecretStore):
    """Resolves ``${aws:name}`` or ``${aws:ARN}``; ``#field`` selects one field of a JSON secret."""

    prefix = "aws"

    def __init__(self, client: Client | None = None) -> None:
        super().__init__()
        self._given = client
        self._ours: dict[str | None, Client] = {}  # by region

    def read(self, name: str) -> Secret:
        import_client("boto3", self.prefix, "aws")
        try:
            answer = (self._given or self._client_for(name)).get_secret_value(SecretId=name)
        except Exception as error:
            _explain(error, name)
        text = answer.get("SecretString")
        if text is not None:
            return str(text)
        try:
            return bytes(answer.get("SecretBinary") or b"").decode("utf-8")
        except UnicodeDecodeError:
            pass
        # raised outside of the handler: the decoder's error carries the secret's bytes
        raise ConfigError(f"the secret aws:{name} is binary, and no text in UTF-8")

    def _client_for(self, name: str) -> Client:
        """The client for the region in the ARN, else for the default region."""
        import boto3
        from botocore.config import Config

        arn = name.split(":")
        region = arn[3] if arn[0] == "arn" and len(arn) > 3 else None
        if region not in self._ours:
            limits = Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": 2, "mode": "standard"},
            )
            # a separate session, because the library's shared one is not thread-safe
            self._ours[region] = boto3.Session().client("secretsmanager", region_name=region, config=limits)
        return self._ours[region]


def _explain(error: Exception, name: str) -> NoReturn:
    """Turn an error of the library into one that a user understands."""
    from botocore import exceptions as known

    where = f"the secret aws:{name}"
    if isinstance(error, known.ClientError):
        _explain_answer(error, where)
    if isinstance(error, known.NoRegionError):
        raise ConfigError(f"{where}: in which region?", next_step="export AWS_DEFAULT_REGION=…") from None
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError)):
        raise ConfigError(f"no login for AWS: {error}", next_step=_LOGIN) from None
    if isinstance(error, (known.HTTPClientError, known.ConnectionError)):
        raise CannotConnect(
            f"AWS Secrets Manager cannot be reached: {error}", next_step="aws secretsmanager list-secrets"
        ) from None
    if isinstance(error, known.BotoCoreError):
        raise ConfigError(f"{where} could not be read: {error}", next_step=_LOGIN) from None
    raise error


def _explain_answer(error: Any, where: str) -> NoReturn:
    code, message = error_code(error), error_message(error)
    if code == "ResourceNotFoundException":
        raise MissingSecret(
            f"{where} is not there, or has no current version",
            next_step="aws secretsmanager list-secrets  shows those of this account and region",
        ) from None
    if code in ACCESS_DENIED:
        raise ConfigError(
            f"AWS does not let us read {where}: {message}",
            next_step="allow secretsmanager:GetSecretValue, and kms:Decrypt if the secret has its own key",
        ) from None
    if code in REFUSED_KEYS or code in _EXPIRED_LOGIN:
        how = "has ended" if code in _EXPIRED_LOGIN else "is refused"
        raise ConfigError(f"the login for AWS {how}: {message}", next_step=_LOGIN) from None
    if http_status(error) >= 500 or "Throttl" in code:
        raise CannotConnect(f"AWS Secrets Manager failed: {message}", next_step="try again later") from None
    raise ConfigError(f"{where} could not be read: {message}") from None
