"""AWS Glue's schema registry, through boto3."""

from __future__ import annotations

import time
from typing import Any

from ematix_flow.aws.errors import error_code, error_message
from ematix_flow.aws.sessions import aws_session
from ematix_flow.backends.payloads.framing import SchemaId
from ematix_flow.backends.payloads.registry import RegisteredSchema, SchemaRegistry
from ematix_flow.errors import CannotConnect, SchemaMismatch
from ematix_flow.spec.connections.registries import GlueSchemaRegistryConnection

_COMPATIBILITY = "BACKWARD"  # as in Confluent's registry
_UNKNOWN = ("EntityNotFoundException", "InvalidInputException", "ValidationException")
_PAUSE = 0.2


class GlueRegistry(SchemaRegistry):
    """``seconds`` limits one call, including a retry."""

    is_glue = True

    def __init__(self, connection: GlueSchemaRegistryConnection, seconds: float) -> None:
        super().__init__()
        self._connection, self._seconds = connection, seconds
        self._where = connection.endpoint or f"region {connection.region}"
        self._client = self._new_client()

    def _new_client(self) -> Any:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        connection = self._connection
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 2},
            connect_timeout=self._seconds * 0.4,
            read_timeout=self._seconds * 0.4,
        )
        try:
            session = aws_session(
                access_key_id=connection.aws_access_key_id,
                secret_access_key=connection.aws_secret_access_key,
                session_token=connection.aws_session_token,
                profile=connection.aws_profile,
                region=connection.region,
            )
            return session.client("glue", endpoint_url=connection.endpoint or None, config=config)
        except (BotoCoreError, ValueError) as error:
            raise CannotConnect(
                f"connection {connection.name!r} to Glue cannot be used: {error}",
                next_step="fix its region, endpoint or profile",
            ) from error

    def subject_name(self, topic: str, record: str, strategy: str) -> str:
        """Glue's own clients name a schema like its topic, without a suffix."""
        return {"topic_name": topic, "record_name": record, "topic_record_name": f"{topic}-{record}"}[
            strategy
        ]

    def latest_schema(self, subject: str) -> RegisteredSchema | None:
        return self._get_version(
            SchemaId=self._schema_name(subject), SchemaVersionNumber={"LatestVersion": True}
        )

    def _fetch(self, schema_id: SchemaId) -> RegisteredSchema | None:
        return self._get_version(SchemaVersionId=schema_id) if isinstance(schema_id, str) else None

    def _get_version(self, **which: Any) -> RegisteredSchema | None:
        found = self._call("get_schema_version", **which)
        if found is None:
            return None
        return RegisteredSchema(found["SchemaVersionId"], found["SchemaDefinition"], found["DataFormat"])

    def register(self, subject: str, text: str, kind: str) -> SchemaId:
        if self.latest_schema(subject) is None:
            answer = self._call(
                "create_schema",
                RegistryId={"RegistryName": self._connection.registry_name},
                SchemaName=subject,
                DataFormat=kind,
                Compatibility=_COMPATIBILITY,
                SchemaDefinition=text,
            )
            if answer is None:
                raise SchemaMismatch(
                    f"Glue refuses schema {subject!r}, or has no registry {self._connection.registry_name!r}",
                    next_step=f"check the registry of connection {self._connection.name!r}, and that the"
                    " topic's name is one that Glue allows",
                )
            return str(answer["SchemaVersionId"])
        answer = self._call(
            "register_schema_version", SchemaId=self._schema_name(subject), SchemaDefinition=text
        )
        version = str(answer["SchemaVersionId"]) if answer else ""
        if not answer or not self._wait_until_available(version, answer.get("Status", "")):
            raise SchemaMismatch(
                f"Glue refuses these columns for schema {subject!r}: they do not fit its earlier versions",
                state="nothing was sent",
                next_step="make new columns nullable and keep the types of old ones, or use another topic",
            )
        return version

    def _wait_until_available(self, version: str, status: str) -> bool:
        """Whether Glue accepts the version; waits while Glue checks it."""
        end = time.monotonic() + self._seconds
        while status == "PENDING" and time.monotonic() < end:
            time.sleep(_PAUSE)
            found = self._call("get_schema_version", SchemaVersionId=version)
            status = found.get("Status", "") if found else "FAILURE"
        return status == "AVAILABLE"

    def _schema_name(self, subject: str) -> dict[str, str]:
        return {"RegistryName": self._connection.registry_name, "SchemaName": subject}

    def _call(self, method: str, **arguments: Any) -> dict[str, Any] | None:
        """The answer; None when Glue reports that it does not exist."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        try:
            return dict(getattr(self._client, method)(**arguments))
        except ParamValidationError:
            return None  # such a name is not possible
        except ClientError as error:
            code = error_code(error)
            if code in _UNKNOWN:
                return None
            raise CannotConnect(
                f"Glue's schema registry ({self._where}) refuses connection"
                f" {self._connection.name!r}: {code} {error_message(error)}",
                next_step="check its keys or profile and their rights, and run it again",
            ) from error
        except BotoCoreError as error:
            raise CannotConnect(
                f"cannot reach Glue's schema registry ({self._where}): {error}",
                next_step=f"check the endpoint and region of connection {self._connection.name!r}",
            ) from error
