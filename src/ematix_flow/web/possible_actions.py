"""Which actions are possible on a run now, and why the others are not."""

from __future__ import annotations

from typing import Any

from ematix_flow.schedule.actions.requests import find_refusal
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.web.site import READ_ONLY, Site
from ematix_flow.web.store_access import StoreAway


def possible_actions(site: Site, record: RunRecord) -> dict[str, dict[str, Any]]:
    """Each action is checked by the function that a request is checked by."""
    subjects = {
        "stop": record.run_id,
        "restart": record.run_id,
        "pause": record.pipeline,
        "resume": record.pipeline,
        "resume_from_watermark": record.pipeline,
    }
    stores = site.stores
    reasons: dict[str, str | None] = dict.fromkeys(subjects, READ_ONLY)
    if not site.read_only:
        for kind, subject in subjects.items():
            refusal = find_refusal(
                kind,
                subject,
                {},
                registry=site.registry,
                run_log=stores.run_log(),
                slots=stores.slots(),
                actions=stores.actions(),
            )
            if isinstance(refusal, StoreAway):
                raise refusal
            reasons[kind] = None if refusal is None else refusal.what
    return {kind: {"ok": why is None, "why": why} for kind, why in reasons.items()}
