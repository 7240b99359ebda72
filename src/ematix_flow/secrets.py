"""Secret references ``${VAR}`` and ``${prefix:reference}``, and the secret stores that resolve them."""

from __future__ import annotations

from ematix_flow.config.interpolate import (
    EnvResolver,
    SecretResolver,
    expand,
    register_resolver,
    unregister_resolver,
)
from ematix_flow.config.secret_stores.aws import AWSSecretsManagerResolver
from ematix_flow.config.secret_stores.gcp import GCPSecretManagerResolver
from ematix_flow.config.secret_stores.vault import VaultResolver
from ematix_flow.errors import MissingSecret as MissingSecretError

__all__ = [
    "AWSSecretsManagerResolver",
    "EnvResolver",
    "GCPSecretManagerResolver",
    "MissingSecretError",
    "SecretResolver",
    "VaultResolver",
    "expand",
    "register_resolver",
    "unregister_resolver",
]
