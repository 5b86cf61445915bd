"""What tests of ``/schedules`` ask and read."""

from __future__ import annotations

from typing import Any

import httpx


def wanted(name: str = "nightly", **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": name, "agent": "report", "every": "1h"}
    return {key: value for key, value in {**given, **fields}.items() if value is not ...}


async def made(client: httpx.AsyncClient, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/schedules", json=wanted(name, **fields))
    assert answer.status_code == 201, answer.text
    return answer.json()


def problem(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["detail"]


async def names(client: httpx.AsyncClient, **query: Any) -> list[str]:
    return [each["name"] for each in (await client.get("/schedules", params=query)).json()["schedules"]]
