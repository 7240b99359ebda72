"""Secret stores behind ``${prefix:reference}``: Vault, AWS Secrets Manager, Google Secret Manager.

Each takes the client that the user made with its vendor's library; nothing is imported here.
"""

from __future__ import annotations

import json
from typing import Any

from ematix_flow.errors import ConfigError, MissingSecret

# the clients are duck-typed: hvac.Client, boto3's "secretsmanager", SecretManagerServiceClient
Client = Any


class VaultResolver:
    """``${vault:path#key}`` from a KV version 2 engine; without a key all of the secret, as JSON."""

    def __init__(self, client: Client, mount_point: str = "secret") -> None:
        self._client = client
        self._mount_point = mount_point

    def resolve(self, reference: str) -> str:
        path, _, key = reference.partition("#")
        answer = self._client.secrets.kv.v2.read_secret_version(path=path, mount_point=self._mount_point)
        data = answer["data"]["data"]
        return _pick(data, key, f"vault:{path}") if key else json.dumps(data)


class AWSSecretsManagerResolver:
    """``${aws:name}``, or ``${aws:name#field}`` for a field of a secret that is JSON."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def resolve(self, reference: str) -> str:
        name, _, field = reference.partition("#")
        answer = self._client.get_secret_value(SecretId=name)
        text = answer.get("SecretString")
        if text is None:
            binary = answer.get("SecretBinary")
            if binary is None:
                raise MissingSecret(f"the secret aws:{name} holds neither text nor bytes")
            text = bytes(binary).decode("utf-8")
        if not field:
            return str(text)
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            # "from None": the decoder's error carries the secret's text
            raise ConfigError(
                f"the secret aws:{name} is not JSON, so it has no field {field!r}",
                next_step=f"write ${{aws:{name}}} for the whole of it",
            ) from None
        return _pick(data, field, f"aws:{name}")


class GCPSecretManagerResolver:
    """``${gcp:name}``, ``${gcp:name#version}`` or a full resource name; the latest version by default."""

    def __init__(self, client: Client, project: str | None = None) -> None:
        self._client = client
        self._project = project

    def resolve(self, reference: str) -> str:
        name, _, version = reference.partition("#")
        if not name.startswith("projects/"):
            if not self._project:
                raise ConfigError(
                    f"gcp:{name} is a short name, and the resolver knows no project",
                    next_step="GCPSecretManagerResolver(client, project=…) or projects/…/secrets/…",
                )
            name = f"projects/{self._project}/secrets/{name}"
        if "/versions/" not in name:
            name = f"{name}/versions/{version or 'latest'}"
        answer = self._client.access_secret_version(request={"name": name})
        payload: bytes = answer.payload.data
        return payload.decode("utf-8")


def _pick(data: object, key: str, where: str) -> str:
    if not isinstance(data, dict) or key not in data:
        raise MissingSecret(f"the secret {where} has no key {key!r}")
    value = data[key]
    return value if isinstance(value, str) else json.dumps(value)
