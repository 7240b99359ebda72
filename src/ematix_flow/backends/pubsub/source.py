"""Subscriptions as stream sources.

The subscription itself is the position: its unacknowledged messages are delivered. So ``starting`` is not
used; ``gcloud pubsub subscriptions seek`` moves a subscription.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.api_core.exceptions import NotFound, PermissionDenied
from google.pubsub_v1 import SubscriberClient

from ematix_flow.backends.messages.base import ReadRequest, ReceivedSource, Receiver
from ematix_flow.backends.pubsub import names
from ematix_flow.backends.pubsub.clients import (
    CALL_SECONDS,
    close_client,
    publisher_client,
    short_retry,
    subscriber_client,
)
from ematix_flow.backends.pubsub.failures import translate_errors
from ematix_flow.backends.pubsub.receiver import PubSubReceiver
from ematix_flow.backends.pubsub.subscription import ASSUMED_DEADLINE, Subscription
from ematix_flow.errors import SourceFailed, SourceMissing
from ematix_flow.spec.connections import PubSubConnection

_SHOWN = 10


class PubSubSource(ReceivedSource):
    def __init__(self, connection: PubSubConnection) -> None:
        self._connection = connection

    def check(self, reading: ReadRequest) -> None:
        with subscriber_client(self._connection) as client:
            self._subscription(client, reading.query)

    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> Receiver:
        client = subscriber_client(self._connection)
        try:
            subscription = self._subscription(client, reading.query)
        except BaseException:
            close_client(client)
            raise
        return PubSubReceiver(self._connection, client, subscription)

    def _subscription(self, client: SubscriberClient, name: str) -> Subscription:
        if names.is_topic_path(name):
            raise self._missing_error(names.short_name(name), name)
        path = names.subscription_path(self._connection.project_id, name, SourceFailed)
        request = {"subscription": path}
        with translate_errors(
            self._connection, f"describe subscription {names.short_name(path)!r}", SourceFailed
        ):
            try:
                found = client.get_subscription(request=request, retry=short_retry(), timeout=CALL_SECONDS)
            except NotFound as error:
                raise self._missing_error(names.short_name(path), path) from error
            except PermissionDenied:  # pulling needs fewer rights than describing
                return Subscription(path)
        if (
            found.push_config.push_endpoint
            or found.bigquery_config.table
            or found.cloud_storage_config.bucket
        ):
            raise SourceFailed(
                f"subscription {names.short_name(path)!r} delivers by itself (push, BigQuery or a bucket): "
                "it cannot be pulled from",
                next_step=self._create_command(
                    names.short_name(found.topic), f"{names.short_name(path)}-pull"
                ),
            )
        if found.detached:
            raise SourceFailed(
                f"subscription {names.short_name(path)!r} is detached from its topic and receives nothing",
                next_step=self._create_command(names.short_name(found.topic), f"{names.short_name(path)}-2"),
            )
        return Subscription(
            path,
            topic=names.short_name(found.topic),
            ack_deadline=found.ack_deadline_seconds or ASSUMED_DEADLINE,
            exactly_once=found.enable_exactly_once_delivery,
            dead_letters=bool(found.dead_letter_policy.dead_letter_topic),
        )

    def _missing_error(self, name: str, path: str) -> SourceMissing:
        """The error for a missing subscription; it suggests those of a topic of that name."""
        project = self._connection.project_id
        topic = names.topic_path(project, path if names.is_topic_path(path) else name, SourceFailed)
        request = {"topic": topic, "page_size": _SHOWN + 1}
        with (
            publisher_client(self._connection) as client,
            translate_errors(self._connection, f"find subscription {name!r}", SourceFailed),
        ):
            try:
                pages = client.list_topic_subscriptions(
                    request=request, retry=short_retry(), timeout=CALL_SECONDS
                )
                found = [names.short_name(each) for each in next(iter(pages.pages)).subscriptions]
                if not found:
                    client.get_topic(request={"topic": topic}, retry=short_retry(), timeout=CALL_SECONDS)
            except (NotFound, PermissionDenied):
                return SourceMissing(
                    f"project {project!r} has no subscription {name!r}",
                    next_step=self._create_command("TOPIC", name),
                )
        if not found:
            return SourceMissing(
                f"{name!r} is a topic of project {project!r}, which has no subscription to read from",
                next_step=self._create_command(name, f"{name}-flow"),
            )
        subscriptions = ", ".join(sorted(found)[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        return SourceMissing(
            f"{name!r} is a topic of project {project!r}; a stream reads from a subscription of it",
            next_step=f"name one of: {subscriptions};  or  {self._create_command(name, f'{name}-flow')}",
        )

    def _create_command(self, topic: str, subscription: str) -> str:
        project = self._connection.project_id
        return f"gcloud pubsub subscriptions create {subscription} --topic={topic} --project={project}"
