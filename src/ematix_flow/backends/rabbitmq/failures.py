"""Turns errors of the driver and the broker into our errors, with the next step."""

from __future__ import annotations

import socket
import ssl

from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ConnectionClosed,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from ematix_flow.errors import (
    CannotConnect,
    FlowError,
    LoadError,
    SourceFailed,
    SourceMissing,
    TargetFailed,
    TargetMissing,
)

URL_FIELDS = "url / amqp_url"  # two names of one field
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, NOT_ALLOWED = 403, 404, 405, 530


def cannot_connect(error: BaseException, name: str, label: str, vhost: str, user: str) -> CannotConnect:
    """The error for a failed connection. ``label`` is the server's address without login."""
    what, step = _connect_reason(error, label, vhost, user)
    return CannotConnect(f"connection {name!r}: {what}", next_step=step)


def _connect_reason(error: BaseException, label: str, vhost: str, user: str) -> tuple[str, str]:
    chain = _error_chain(error)
    inner, text = chain[-1], _error_text(error)
    if _contains(chain, ProbableAuthenticationError, AuthenticationError):
        return (
            f"RabbitMQ at {label} refuses the user {user!r} or its password",
            f"fix the user and password in {URL_FIELDS}; "
            "the user guest may connect from the same machine only",
        )
    if _contains(chain, ProbableAccessDeniedError) or _reply_code(error) == NOT_ALLOWED:
        if "not found" in text:
            return (
                f"RabbitMQ at {label} has no virtual host {vhost!r}",
                f"create it:  rabbitmqctl add_vhost {vhost!r} ; or fix the end of {URL_FIELDS}",
            )
        return (
            f"RabbitMQ at {label} does not allow {user!r} into the virtual host {vhost!r}: {text}",
            f"allow it:  rabbitmqctl set_permissions -p {vhost!r} {user!r} '.*' '.*' '.*'",
        )
    if isinstance(inner, ssl.SSLCertVerificationError):
        return (
            f"the certificate of RabbitMQ at {label} is not trusted: {inner.verify_message}",
            "set tls_ca_path to the authority that signed it",
        )
    if isinstance(inner, ssl.SSLError):
        return (
            f"TLS with RabbitMQ at {label} failed: {inner.reason or inner}",
            "check whether that port uses TLS (usually 5671); "
            f"begin {URL_FIELDS} with amqp:// if it does not",
        )
    if isinstance(inner, socket.gaierror):
        return (f"the host of {label} is not known", f"fix the host in {URL_FIELDS}")
    if isinstance(inner, ConnectionRefusedError):
        return (
            f"nothing listens at {label}",
            f"check that RabbitMQ runs, and the host and port in {URL_FIELDS}",
        )
    if isinstance(inner, TimeoutError) or any("Timeout" in type(each).__name__ for each in chain):
        return (f"RabbitMQ at {label} does not answer in time", "check the network and the firewall")
    if _contains(chain, IncompatibleProtocolError):
        return (
            f"the server at {label} does not speak AMQP 0-9-1, or only over TLS",
            f"fix the port in {URL_FIELDS}, or begin it with amqps://",
        )
    return (f"RabbitMQ at {label}: {text}", "check the server's log")


def source_refusal(error: BaseException, name: str, queue: str, *, was_there: bool = False) -> SourceFailed:
    """The error for a queue that the broker does not let us read."""
    what, step = _queue_reason(error, queue, was_there)
    kind = SourceMissing if _reply_code(error) == NOT_FOUND else SourceFailed
    return kind(
        f"connection {name!r}: {what}",
        state="received messages are kept; unacknowledged messages are still in the queue, if it exists",
        next_step=step,
    )


def target_refusal(error: BaseException, name: str, destination: str) -> TargetFailed:
    """The error for a destination that the broker does not let us send to."""
    what, step = _queue_reason(error, destination, False)
    kind = TargetMissing if _reply_code(error) == NOT_FOUND else TargetFailed
    return kind(f"connection {name!r}: {what}", state="nothing was sent", next_step=step)


def _queue_reason(error: BaseException, destination: str, was_there: bool) -> tuple[str, str]:
    code = _reply_code(error)
    if code == NOT_FOUND and destination.startswith("exchange:"):
        return (
            f"RabbitMQ has no exchange {destination[9:].partition('/')[0]!r}",
            "declare it, and bind a queue to it",
        )
    if code == NOT_FOUND:
        return (
            f"the queue {destination!r} was deleted while it was read"
            if was_there
            else f"there is no queue {destination!r}",
            f"declare it:  rabbitmqadmin declare queue name={destination} durable=true",
        )
    if code == ACCESS_REFUSED:
        return (
            f"RabbitMQ does not allow it: {_error_text(error)}",
            "set the permission: rabbitmqctl set_permissions",
        )
    if code == RESOURCE_LOCKED:
        return (
            f"the queue {destination!r} is exclusive to another connection",
            "end the other consumer, or declare the queue without exclusive",
        )
    return (f"RabbitMQ refuses {destination!r}: {_error_text(error)}", "check the server's log")


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: the connection ended, or the queue's node is down for a while."""
    if isinstance(error, ChannelClosedByBroker):
        if error.reply_code == NOT_FOUND:
            return "is down" in error.reply_text or "inaccessible" in error.reply_text
        return error.reply_code not in (ACCESS_REFUSED, RESOURCE_LOCKED, NOT_ALLOWED)
    return not isinstance(error, FlowError) or isinstance(error, CannotConnect)


def connection_lost(name: str, label: str, error: BaseException | None, seconds: float) -> CannotConnect:
    why = (
        error.what.partition(": ")[2] if isinstance(error, FlowError) else _error_text(error) if error else ""
    )
    return CannotConnect(
        f"connection {name!r}: RabbitMQ at {label} has been unreachable for {seconds:.0f} seconds"
        + (f": {why}" if why else ""),
        state="received messages are kept; unacknowledged messages are still in the queue",
        next_step="start it again when the server is back",
    )


def send_failure(error: BaseException, name: str, destination: str, label: str) -> LoadError:
    """The error for a batch that failed while it was sent; repeating it sends some messages twice."""
    return TargetFailed(
        f"connection {name!r}: sending to {destination!r} at {label} failed: {_error_text(error)}",
        state="some messages of the batch may have arrived; they are sent again with the batch",
        next_step="run it again; check the server's log if it fails again",
    )


def _reply_code(error: BaseException) -> int | None:
    for each in _error_chain(error):
        if isinstance(each, (ChannelClosedByBroker, ConnectionClosed)):
            return int(each.reply_code)
    return None


def _error_text(error: BaseException) -> str:
    """The error text of the broker or of the system."""
    chain = _error_chain(error)
    for each in chain:
        if isinstance(each, (ChannelClosedByBroker, ConnectionClosed)):
            return str(each.reply_text)
    words = str(chain[-1]).strip().splitlines()
    return f"{type(chain[-1]).__name__}: {words[0]}" if words else type(chain[-1]).__name__


def _contains(chain: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(each, kinds) for each in chain)


def _error_chain(error: BaseException) -> list[BaseException]:
    """The error and the errors it wraps: the driver hides causes in arguments and attributes."""
    chain = [error]
    while len(chain) < 10:
        last = chain[-1]
        several = getattr(last, "exceptions", None) or ()
        inside = [getattr(last, "exception", None), *reversed(several), *getattr(last, "args", ())]
        nested = next((each for each in inside if isinstance(each, BaseException)), None)
        if nested is None:
            break
        chain.append(nested)
    return chain


DRIVER_ERRORS = (AMQPError, OSError, EOFError)
