"""What a pod proves about a worker: the whole table."""

from __future__ import annotations

import pytest

from holdfast.kubernetes.pod import COST, Pod, cost_of
from holdfast.redis.members import PodName
from holdfast.runs.podproof import Proof, proof_of

NAMESPACE = "agents"
KNOWN = PodName(NAMESPACE, "w-1", "u1")
SAME = Pod("w-1", "u1")
OTHER = Pod("w-1", "u2")
GONE, LIVES, UNKNOWN = Proof.GONE, Proof.LIVES, Proof.UNKNOWN


@pytest.mark.parametrize(
    ("known", "found", "proof"),
    [
        # It said which pod it is in.
        (KNOWN, None, GONE),
        (KNOWN, SAME, LIVES),
        (KNOWN, Pod("w-1", "u1", "Pending"), LIVES),
        (KNOWN, Pod("w-1", "u1", "Unknown"), LIVES),
        (KNOWN, Pod("w-1", "u1", "Failed"), GONE),
        (KNOWN, Pod("w-1", "u1", "Succeeded"), GONE),
        (KNOWN, Pod("w-1", "u1", deleting=True), UNKNOWN),
        (KNOWN, Pod("w-1", "u1", "Failed", deleting=True), GONE),
        (KNOWN, OTHER, GONE),
        (KNOWN, Pod("w-1", "u2", "Pending"), GONE),
        (KNOWN, Pod("w-1", "u2", deleting=True), GONE),
        # It did not say its uid.
        (PodName(NAMESPACE, "w-1", ""), None, GONE),
        (PodName(NAMESPACE, "w-1", ""), OTHER, LIVES),
        (PodName(NAMESPACE, "w-1", ""), Pod("w-1", "u2", "Failed"), GONE),
        # We can't see where it is: that there is none here is no proof.
        (PodName("elsewhere", "w-1", "u1"), None, UNKNOWN),
        (PodName("elsewhere", "w-1", "u1"), SAME, UNKNOWN),
        (PodName("", "w-1", "u1"), None, UNKNOWN),
        # It said nothing: only a pod that has its very name speaks for it, and nothing speaks against it.
        (None, None, UNKNOWN),
        (None, OTHER, LIVES),
        (None, Pod("w-1", "u2", "Failed"), UNKNOWN),
        (None, Pod("w-1", "u2", deleting=True), UNKNOWN),
    ],
)
def test_the_proof_by_what_was_said_and_what_is_there(known, found, proof):
    assert proof_of(known, found, namespace=NAMESPACE) is proof


@pytest.mark.parametrize(
    ("found", "proof"), [(SAME, UNKNOWN), (None, GONE), (OTHER, GONE), (Pod("w-1", "u1", "Failed"), GONE)]
)
def test_a_pod_in_which_another_worker_lives_says_nothing_of_an_earlier_one(found, proof):
    """A container that was started again, without WORKER_POD_NAME, is another consumer in the same pod."""
    assert proof_of(KNOWN, found, namespace=NAMESPACE, shared=True) is proof


@pytest.mark.parametrize(
    ("annotations", "cost"),
    [({}, 0), ({COST: "100"}, 100), ({COST: "-5"}, -5), ({COST: "many"}, 0), ({COST: ""}, 0)],
)
def test_a_cost_that_is_no_number_is_read_as_none(annotations, cost):
    assert cost_of(annotations) == cost
