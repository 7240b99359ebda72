"""Names of topics and subscriptions: short for users, full paths for the service."""

from __future__ import annotations

import re

from ematix_flow.errors import FlowError

_SHORT = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")
_WHOLE = re.compile(r"projects/[^/\s]+/(topics|subscriptions)/([^/\s]+)")


def subscription_path(project: str, name: str, refusal: type[FlowError]) -> str:
    return _path(project, "subscriptions", name, refusal)


def topic_path(project: str, name: str, refusal: type[FlowError]) -> str:
    return _path(project, "topics", name, refusal)


def is_topic_path(name: str) -> bool:
    """Whether it is the path of a topic, which cannot be read from."""
    found = _WHOLE.fullmatch(name)
    return found is not None and found[1] == "topics"


def short_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _path(project: str, kind: str, name: str, refusal: type[FlowError]) -> str:
    whole = _WHOLE.fullmatch(name)
    if whole is not None and whole[1] == kind and _SHORT.fullmatch(whole[2]):
        return name
    if _SHORT.fullmatch(name) is None:
        raise refusal(
            f"{name!r} is not a valid name of a Pub/Sub {kind[:-1]}",
            next_step="a name begins with a letter and has 3 to 255 of letters, digits and  - _ . ~ + %;"
            f"  or it is a path like  projects/{project}/{kind}/name",
        )
    return f"projects/{project}/{kind}/{name}"
