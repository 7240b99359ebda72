"""The backend of a Pub/Sub connection: one Google Cloud project."""

from __future__ import annotations

from google.api_core.exceptions import PermissionDenied

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.pubsub.clients import (
    CALL_SECONDS,
    SERVICE,
    address_of,
    publisher_client,
    pubsub_connection,
    short_retry,
)
from ematix_flow.backends.pubsub.failures import translate_errors
from ematix_flow.backends.pubsub.source import PubSubSource
from ematix_flow.backends.pubsub.target import PubSubTarget
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import Connection


class PubSubStreamBackend(Backend):
    """A source and target of streams; batch pipelines cannot use it."""

    kind = "pubsub"
    capabilities = Capabilities(same_db=False, schemas=False)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._project = pubsub_connection(connection)

    def check(self) -> str:
        project = self._project.project_id
        address = address_of(self._project)
        where = f"Google Pub/Sub, project {project}" + ("" if address == SERVICE else f", at {address}")
        with (
            publisher_client(self._project) as client,
            translate_errors(self._project, "list topics", CannotConnect),
        ):
            request = {"project": f"projects/{project}", "page_size": 1}
            try:
                client.list_topics(request=request, retry=short_retry(), timeout=CALL_SECONDS)
            except PermissionDenied:  # an account that may only read one subscription is fine
                return f"{where} (this account may not list its topics)"
        return where

    def identity(self) -> str:
        return f"pubsub:{address_of(self._project)}/{self._project.project_id}"

    def stream_source(self) -> PubSubSource:
        return PubSubSource(self._project)

    def message_target(self) -> PubSubTarget:
        return PubSubTarget(self._project)
