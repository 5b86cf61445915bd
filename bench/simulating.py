"""How long a simulated day of a million runs takes, under KEDA and under the local autoscaler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.figures import Figure, Goal, median_of
from holdfast.config.scaling import ScalingSettings
from holdfast_simulator.engine import Simulation
from holdfast_simulator.policies import policies_of
from holdfast_simulator.synthetic import synthetic_trace
from holdfast_simulator.world import World

if TYPE_CHECKING:
    from bench.harness import Plan

WORLD = World(slots=10, scaling=ScalingSettings(max_workers=100))
POLICIES = {"depth": "KEDA by depth", "local": "the local autoscaler"}


async def measure(plan: Plan) -> list[Figure]:
    share = plan.pick(1.0, 0.02)
    trace = synthetic_trace(f"synthetic:diurnal?rate={3.2 * share}&peak={20 * share}&duration=20", 1)
    figures = []
    for name, words in POLICIES.items():
        [policy] = policies_of(name, WORLD)
        took = []
        for _ in range(plan.pick(3, 1)):
            began = time.perf_counter()
            outcome = Simulation(trace, policy, WORLD).run()
            took.append(time.perf_counter() - began)
            assert outcome.unfinished == 0
        plan.say(f"simulate: {len(trace):,} runs under {words} in {min(took):.1f} s")
        title = f"simulate a day of {len(trace):,} runs, {words}"
        figures.append(median_of(title, "s", took, goal=Goal("<", 30)))
    return figures
