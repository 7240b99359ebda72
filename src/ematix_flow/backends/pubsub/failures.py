"""Turns errors of Pub/Sub and its client into our errors, with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.api_core import exceptions as e
from google.auth.exceptions import GoogleAuthError

from ematix_flow.backends.pubsub.clients import address_of
from ematix_flow.errors import CannotConnect, FlowError
from ematix_flow.spec.connections import PubSubConnection

UNREACHABLE = (e.ServiceUnavailable, e.DeadlineExceeded, e.RetryError, e.Cancelled)
TRANSIENT = (e.Aborted, e.InternalServerError, e.ResourceExhausted, e.ServiceUnavailable, e.Unknown)


@contextmanager
def translate_errors(
    connection: PubSubConnection,
    doing: str,
    failed: type[FlowError],
    *,
    away: type[FlowError] = CannotConnect,
    state: str | None = None,
) -> Iterator[None]:
    """Turn errors of Google's libraries into ours.

    ``failed`` is raised for a refusal, ``away`` when the service is unreachable.
    """
    try:
        yield
    except (e.GoogleAPICallError, e.RetryError, GoogleAuthError) as error:
        raise explain_error(connection, doing, failed, error, away=away, state=state) from error


def explain_error(
    connection: PubSubConnection,
    doing: str,
    failed: type[FlowError],
    error: Exception,
    *,
    away: type[FlowError] = CannotConnect,
    state: str | None = None,
) -> FlowError:
    name = connection.name
    cause = error.cause if isinstance(error, e.RetryError) and error.cause is not None else error
    words = " ".join(str(getattr(cause, "message", "") or cause).split())
    if isinstance(cause, (GoogleAuthError, e.Unauthenticated)):
        return CannotConnect(
            f"Google refused the credentials of connection {name!r}: {words}",
            state=state,
            next_step="check credentials_path, or sign in again:  gcloud auth application-default login",
        )
    if isinstance(cause, UNREACHABLE):
        return away(
            f"cannot reach Pub/Sub at {address_of(connection)} ({doing}): {words}",
            state=state,
            next_step=f"check the endpoint of connection {name!r} and the network, and run it again",
        )
    if isinstance(cause, e.PermissionDenied):
        return failed(
            f"the account of connection {name!r} is not allowed to {doing}: {words}",
            state=state,
            next_step=f"give it the role that this needs in project {connection.project_id!r} "
            "(roles/pubsub.subscriber, roles/pubsub.publisher, roles/pubsub.viewer)",
        )
    return failed(
        f"Pub/Sub refused to {doing}: {words}",
        state=state,
        next_step=f"flow connections check {name}",
    )
