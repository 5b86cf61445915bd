"""What the HTTP API is measured against: a FastAPI route that does nothing."""

from __future__ import annotations

from fastapi import FastAPI

app = FastAPI()


@app.post("/execute", status_code=202)
async def execute() -> dict[str, str]:
    return {"status": "queued"}
