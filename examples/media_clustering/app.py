"""The media clustering worker.

cd examples/media_clustering
holdfast dev app.py                       # a server, a worker and the HTTP API, here
python -m media_clustering.auth_service   # from examples/: jobs, by the roll-out
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, Context

from .clustering import cluster as group
from .results import Results
from .schema import Job, read_job
from .tracing import job_span

app = App("media-clustering")


@app.agent(timeout="5m", log_fields=["job_id", "pet_id", "metadata.trace_id"])
async def cluster(ctx: Context, message: Any) -> dict[str, Any]:
    """Cluster the images of one job; a message that is no job is a dead letter at once, with the reason."""
    job = read_job(message)
    with job_span(job, ctx.attempt):
        ctx.log.info("clustering", images=len(job.image_ids), reason=job.reason)
        await rehearse(job, ctx.attempt)
        clusters = group(map(str, job.image_ids))
        fresh = await asyncio.to_thread(Results().record, job.job_id, str(job.pet_id), clusters, "queue")
        ctx.log.info("clustered", clusters=len(clusters), fresh=fresh)
    return {"job_id": job.job_id, "clusters": len(clusters), "fresh": fresh}


async def rehearse(job: Job, attempt: int) -> None:
    """Fail, or take long at first, if the job's reason asks for it: for drills."""
    match job.reason.split():
        case ["drill:fail"]:
            raise ConnectionError("the feature store hung up: this is a drill")
        case ["drill:slow", seconds] if attempt == 1:
            await asyncio.sleep(float(seconds))
        case _:
            pass
