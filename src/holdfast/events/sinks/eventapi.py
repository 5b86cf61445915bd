"""The Event API: every event of every run, as CloudEvents, with the headers that it requires."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.events.sinks.cloudevent import CONTENT_TYPE, cloud_event, trace_headers
from holdfast.events.sinks.request import SinkRequest

if TYPE_CHECKING:
    from holdfast.config import EventApiSettings
    from holdfast.events.event import Event
    from holdfast.events.relay.run_facts import RunFacts

_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")


class EventApi:
    """The receiver at ``event_api.url``; the operator configured it, so it may be in a private network."""

    name = "eventapi"
    ours = True

    def __init__(self, settings: EventApiSettings) -> None:
        self._url = settings.url
        self._headers = {"content-type": CONTENT_TYPE, "x-enterprise-api-internal": settings.secret}

    def request(self, run: RunFacts, event: Event, sequence: int, address: str) -> SinkRequest:
        """Write the request for one event."""
        del address
        headers = {**self._headers, **trace_headers(run)}
        # A client id that is not valid in a header is only in the body.
        if _HEADER_VALUE.fullmatch(run.client_id):
            headers["x-client-id"] = run.client_id
        return SinkRequest(self._url, headers, cloud_event(run, event, sequence), guarded=False)
