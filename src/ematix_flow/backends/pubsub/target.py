"""Pub/Sub topics as message targets."""

from __future__ import annotations

from collections.abc import Mapping

from google.api_core.exceptions import NotFound, PermissionDenied

from ematix_flow.backends.messages.base import MessageTarget, Sender
from ematix_flow.backends.pubsub import names
from ematix_flow.backends.pubsub.clients import CALL_SECONDS, publisher_client, short_retry
from ematix_flow.backends.pubsub.failures import translate_errors
from ematix_flow.backends.pubsub.sender import PubSubSender
from ematix_flow.errors import ConfigError, TargetFailed, TargetMissing
from ematix_flow.spec.connections import PubSubConnection

_OPTIONS = ("ordering",)


class PubSubTarget(MessageTarget):
    """At least once: a message is sent again when its confirmation is lost."""

    def __init__(self, connection: PubSubConnection) -> None:
        self._connection = connection

    def check_destination(self, destination: str) -> None:
        project = self._connection.project_id
        path = names.topic_path(project, destination, TargetMissing)
        doing = f"describe topic {names.short_name(path)!r}"
        with (
            publisher_client(self._connection) as client,
            translate_errors(self._connection, doing, TargetFailed),
        ):
            try:
                client.get_topic(request={"topic": path}, retry=short_retry(), timeout=CALL_SECONDS)
            except PermissionDenied:  # publishing needs fewer rights than describing
                return
            except NotFound as error:
                raise TargetMissing(
                    f"project {project!r} has no topic {names.short_name(path)!r}",
                    next_step=f"gcloud pubsub topics create {names.short_name(path)} --project={project}",
                ) from error

    def sender(self, destination: str, options: Mapping[str, str]) -> Sender:
        """``ordering=false`` sends a key as the attribute ``key`` instead of as the ordering key.

        A request has one ordering key, so sending many different keys in order is slow.
        """
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(f"a Pub/Sub target has no option {unknown[0]!r}; it has  ordering")
        ordering = options.get("ordering", "true").lower()
        if ordering not in ("true", "false"):
            raise ConfigError(f"the option  ordering  is {ordering!r}; it is true or false")
        path = names.topic_path(self._connection.project_id, destination, TargetFailed)
        return PubSubSender(self._connection, path, ordered=ordering == "true")
