"""Schema registries: Confluent's interface (also Apicurio's) and AWS Glue's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.spec.connections.base import Connection
from ematix_flow.spec.connections.urls import UrlPieces


@dataclass(frozen=True, kw_only=True, repr=False)
class SchemaRegistryConnection(Connection):
    """A registry with Confluent's HTTP interface."""

    kind: ClassVar[str] = "schema_registry"
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", "mock")
    keeps_url: ClassVar[bool] = True
    required: ClassVar[tuple[str, ...]] = ("url",)

    basic_auth_user: str = ""
    basic_auth_password: str = ""
    tls_ca_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_key_password: str = ""

    def _check(self) -> None:
        self._require_all_or_none("basic_auth_user", "basic_auth_password")
        self._require_all_or_none("tls_cert_path", "tls_key_path")


@dataclass(frozen=True, kw_only=True, repr=False)
class GlueSchemaRegistryConnection(Connection):
    """AWS Glue's registry. Without a profile or keys the default credential chain is used."""

    kind: ClassVar[str] = "glue_schema_registry"
    schemes: ClassVar[tuple[str, ...]] = ("glue",)
    required: ClassVar[tuple[str, ...]] = ("registry_name", "region")

    registry_name: str = ""
    region: str = ""
    endpoint: str = ""
    aws_profile: str = ""
    aws_access_key_id: str = ""
    aws_secret_access_key: str = ""
    aws_session_token: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {"registry_name": url.address}

    def _check(self) -> None:
        self._require_all_or_none("aws_access_key_id", "aws_secret_access_key")
        if self.aws_profile and self.aws_access_key_id:
            raise self._error("give aws_profile or access keys, not both")
