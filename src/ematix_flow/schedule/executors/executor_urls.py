"""Opens an executor from its URL: where runs go, with options after a question mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ematix_flow.errors import UsageError, did_you_mean
from ematix_flow.schedule.executors.base import Executor
from ematix_probe.redaction import mask

EXAMPLES = {
    "subprocess": "subprocess://?workers=4",
    "k8s": "k8s://<namespace>?image=<image>&env-from=<Secret>",
    "lambda": "lambda://<function>",
}
_ALIASES = {"subprocess+python": "subprocess"}


def open_executor(url: str) -> Executor:
    """Open the executor that a URL names. Raises UsageError if it names none or has an unknown option."""
    parts = urlsplit(url)
    kind = _ALIASES.get(parts.scheme, parts.scheme)
    if kind not in EXAMPLES or "://" not in url:
        raise UsageError(
            f"there is no executor {mask(url)!r}.{did_you_mean(parts.scheme or url, EXAMPLES)}",
            next_step=f"give --executor one of: {'  '.join(EXAMPLES.values())}",
        )
    if parts.path.strip("/") or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{kind}:// is written {EXAMPLES[kind]}, and not {mask(url)}")
    if kind == "subprocess":
        return _open_subprocess(parts)
    return _open_kubernetes(parts) if kind == "k8s" else _open_lambda(parts)


def _open_subprocess(parts: SplitResult) -> Executor:
    from ematix_flow.schedule.executors.subprocesses import SubprocessExecutor

    options = _parse_options("subprocess", parts, ("workers",))
    if parts.netloc:
        raise UsageError(
            "subprocess:// runs on this machine and names no other", next_step=_example_of("subprocess")
        )
    return SubprocessExecutor(_whole_number("workers", options))


def _open_kubernetes(parts: SplitResult) -> Executor:
    from ematix_flow.schedule.executors.kubernetes_jobs import KubernetesExecutor
    from ematix_flow.schedule.executors.kubernetes_manifests import PodOptions

    options = _parse_options(
        "k8s",
        parts,
        (
            "image",
            "service-account",
            "env-from",
            "cpu",
            "memory",
            "workers",
            "ttl",
            "start-timeout",
            "context",
        ),
        {"sa": "service-account", "secret": "env-from", "env-secret": "env-from"},
    )
    if not parts.netloc:
        raise UsageError("k8s:// names no namespace", next_step=_example_of("k8s"))
    if not options.get("image"):
        raise UsageError("k8s:// names no image", next_step=_example_of("k8s"))
    pod = PodOptions(
        namespace=parts.netloc,
        image=options["image"],
        service_account=options.get("service-account"),
        secret=options.get("env-from"),
        cpu=options.get("cpu"),
        memory=options.get("memory"),
        **_without_none(
            ttl_seconds=_whole_number("ttl", options), start_seconds=_whole_number("start-timeout", options)
        ),
    )
    return KubernetesExecutor(pod, workers=_whole_number("workers", options), context=options.get("context"))


def _open_lambda(parts: SplitResult) -> Executor:
    from ematix_flow.schedule.executors.aws_lambda import LambdaExecutor

    options = _parse_options("lambda", parts, ("qualifier", "region"))
    if not parts.netloc:
        raise UsageError("lambda:// names no function", next_step=_example_of("lambda"))
    return LambdaExecutor(parts.netloc, options.get("qualifier"), options.get("region"))


def _parse_options(
    kind: str, parts: SplitResult, known: Sequence[str], aliases: Mapping[str, str] = {}
) -> dict[str, str]:
    found: dict[str, str] = {}
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        name = aliases.get(option, option)
        if name not in known:
            raise UsageError(
                f"{kind}:// has no option {option!r}.{did_you_mean(option, [*known, *aliases])}",
                next_step=f"its options are: {', '.join(known)}",
            )
        if name in found:
            raise UsageError(f"{kind}:// is given {name}= twice")
        if not value.strip():
            raise UsageError(f"{kind}:// is given {name}= without a value")
        found[name] = value
    return found


def _whole_number(name: str, options: Mapping[str, str]) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or int(value) < 1:
        raise UsageError(f"{name}= takes a whole number from 1 on, not {value!r}")
    return int(value)


def _without_none(**options: int | None) -> dict[str, int]:
    return {name: value for name, value in options.items() if value is not None}


def _example_of(kind: str) -> str:
    return f"write it as {EXAMPLES[kind]}"
