"""The work itself: which images show the same. A stand-in for the model, but it always answers the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NEAR = 24
"""Fingerprints of 64 bits that differ in fewer are alike."""


def fingerprint(image_id: str) -> int:
    """What a perceptual hash of the image would be."""
    return int.from_bytes(hashlib.blake2b(image_id.encode(), digest_size=8).digest(), "big")


def cluster(image_ids: Iterable[str]) -> list[list[str]]:
    """Put each image to the first cluster whose first image it is like, else into one of its own."""
    clusters: list[list[str]] = []
    for image_id in image_ids:
        alike = (
            each for each in clusters if (fingerprint(each[0]) ^ fingerprint(image_id)).bit_count() < NEAR
        )
        found = next(alike, None)
        if found is None:
            clusters.append([image_id])
        else:
            found.append(image_id)
    return clusters
