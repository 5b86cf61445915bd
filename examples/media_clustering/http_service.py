"""The old way, and the fallback: clustering by HTTP, without Redis.

python -m media_clustering.http_service

POST /jobs takes the same message; the same job again is answered 200, and not done again.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from aiohttp import web

from holdfast import MalformedMessage

from .clustering import cluster
from .results import Results
from .schema import read_job


class HttpService:
    """The routes of the service."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self.web = web.Application()
        self.web.router.add_post("/jobs", self.post_job)
        self.web.router.add_get("/healthz", self.get_health)

    async def post_job(self, request: web.Request) -> web.Response:
        """Cluster the images of one job, at once."""
        try:
            job = read_job(msgspec.json.decode(await request.read()))
        except (msgspec.DecodeError, MalformedMessage) as exc:
            return web.json_response({"detail": str(exc)}, status=422)
        key = request.headers.get("Idempotency-Key", job.job_id)
        if key != job.job_id:
            return web.json_response({"detail": "Idempotency-Key is not the job_id"}, status=422)
        clusters = cluster(map(str, job.image_ids))
        fresh = await asyncio.to_thread(self._results.record, job.job_id, str(job.pet_id), clusters, "http")
        return web.json_response({"job_id": job.job_id, "fresh": fresh}, status=202 if fresh else 200)

    async def get_health(self, _request: web.Request) -> web.Response:
        """Answer."""
        return web.json_response({"status": "ok"})


if __name__ == "__main__":
    host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8081"))
    web.run_app(HttpService(Results()).web, host=host, port=port)
