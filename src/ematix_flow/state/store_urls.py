"""Parses options in a store's URL, such as ``sqlite://run_log.db?create_tables=false``."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote

from ematix_flow.errors import ConfigError, did_you_mean
from ematix_flow.spec.connections.urls import mask_url, split_url

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def split_options(url: str, own: Collection[str], *, only: bool = False) -> tuple[str, dict[str, str]]:
    """Return the URL without these options, and their values. With ``only`` any other option is refused."""
    query = split_url(url).query
    if query is None:
        return url, {}
    found, rest = dict[str, str](), []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in own:
            found[name] = unquote(value)
        elif only:
            place = mask_url(url.partition("?")[0])
            raise ConfigError(
                f"the run log {place} has no option {name!r}.{did_you_mean(name, own)}",
                next_step=f"its options are {', '.join(own)}" if own else "leave it out; it has no options",
            )
        else:
            rest.append(pair)
    plain = url[: len(url) - len(query) - 1]
    return f"{plain}?{'&'.join(rest)}" if rest else plain, found


def parse_flag(name: str, text: str | None, default: bool = True) -> bool:
    """Parse ``true`` or ``false`` in any of the usual spellings."""
    if text is None:
        return default
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ConfigError(f"{name}={text} of the run log's URL is neither true nor false")
    return text.lower() in _TRUE
