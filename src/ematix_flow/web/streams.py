"""Endpoints of streams and of their dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.errors import FlowError, UnknownName, UsageError
from ematix_flow.graph.listing import stream_listing
from ematix_flow.spec.durations import parse_duration
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterCount, NoSuchLetter
from ematix_flow.state.dead_letters.shown_letters import letter_with_payload
from ematix_flow.state.samples.base import KEPT_FOR, MOST_SAMPLES
from ematix_flow.state.times import utc_now
from ematix_flow.web.answers import not_found
from ematix_flow.web.endpoints import Call
from ematix_flow.web.run_values import run_json
from ematix_flow.web.site import Site


def list_streams(site: Site, call: Call) -> dict[str, Any]:
    names = list(site.registry.streams)
    if not names:
        return {"items": []}
    newest, samples = site.stores.run_log().newest(names), site.stores.samples().newest(names)
    holds = {hold.name: hold for hold in site.stores.actions().holds() if hold.kind == "run"}
    letters = _letters_by_status(site)
    return {
        "items": [
            {
                **stream_listing(declared.spec),
                "run": run_json(newest[name][0]) if newest.get(name) else None,
                "sample": samples[name].to_json() if name in samples else None,
                "hold": holds[name].to_json() if name in holds else None,
                "dead_letters": None if letters is None else {"by_status": letters.get(name, {})},
            }
            for name, declared in site.registry.streams.items()
        ]
    }


def list_samples(site: Site, call: Call) -> dict[str, Any]:
    name = call.required("name")
    _require_stream(site, name)
    span = parse_duration("span", call.text("span") or "1h")
    since = utc_now() - min(span, KEPT_FOR)
    return {"samples": [sample.to_json() for sample in site.stores.samples().read(name, since, MOST_SAMPLES)]}


def _require_stream(site: Site, name: str) -> None:
    try:
        site.registry.stream(name)
    except UnknownName as error:
        raise not_found(error) from error


def _letters_by_status(site: Site) -> dict[str, dict[str, int]] | None:
    """The numbers of letters of each stream; None if a store of letters is away."""
    found: dict[str, dict[str, int]] = {}
    try:
        with site.dead_letters() as stores:
            for count in _counts(stores, None):
                by_status = found.setdefault(count.pipeline, {})
                by_status[count.status] = by_status.get(count.status, 0) + count.letters
    except UsageError:
        raise
    except FlowError:
        return None
    return found


# ------------------------------------------------------------------ dead letters


def list_letters(site: Site, call: Call) -> dict[str, Any]:
    """The letters of one store after the other, each oldest first. A cursor has the number of its store."""
    pipeline, status, stage = call.text("pipeline"), call.text("status"), call.text("stage")
    after, limit = call.text("after"), call.number("limit", 50)
    with site.dead_letters(pipeline if pipeline in site.registry.streams else None) as stores:
        first, place = _parse_cursor(after, len(stores))
        letters: list[DeadLetter] = []
        following: str | None = None
        for number in range(first, len(stores)):
            left: Any = {"status": status, "stage": stage, "reason": call.text("reason"), "after": place}
            page = stores[number].page(pipeline, limit=limit - len(letters), **left)
            letters += page.letters
            place = None
            if page.next is not None:
                following = f"{number}.{page.next}"
                break
            if len(letters) == limit and number + 1 < len(stores):
                following = f"{number + 1}."
                break
        counts = _counts(stores, pipeline)
    return {
        "items": [letter.to_json() for letter in letters],
        "next": following,
        "counts": [_count_json(count) for count in counts],
    }


def show_letter(site: Site, call: Call) -> dict[str, Any]:
    wanted = call.required("id")
    with site.dead_letters() as stores:
        for store in stores:
            try:
                return letter_with_payload(store.get(None, wanted), call.number("bytes", 4096))
            except NoSuchLetter:
                continue
            except UsageError as error:  # several match
                raise not_found(error) from error
    raise not_found(NoSuchLetter(wanted))


def _parse_cursor(text: str | None, stores: int) -> tuple[int, str | None]:
    if text is None:
        return 0, None
    number, _, place = text.partition(".")
    if not (number.isdecimal() and number.isascii() and int(number[:6]) < max(stores, 1)):
        raise UsageError(
            f"{text[:100]!r} is not a cursor", next_step="give the value of  next  of the page before"
        )
    return int(number), place or None


def _counts(stores: Sequence[DeadLetterStore], pipeline: str | None) -> list[LetterCount]:
    return [count for store in stores for count in store.counts(pipeline)]


def _count_json(count: LetterCount) -> Mapping[str, Any]:
    return {
        "pipeline": count.pipeline,
        "stage": count.stage,
        "status": count.status,
        "letters": count.letters,
        "oldest": count.oldest.isoformat(),
        "newest": count.newest.isoformat(),
    }
