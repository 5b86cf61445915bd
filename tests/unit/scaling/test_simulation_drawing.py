"""Pictures: dots at the right height, and an SVG that is one."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from holdfast.cli.formatting import span
from holdfast_simulator.drawing import braille, columns, levels, replicas_of, svg, ticks, waiting_of
from holdfast_simulator.engine import Simulation
from holdfast_simulator.outcome import Sample
from holdfast_simulator.policies import policies_of
from holdfast_simulator.synthetic import synthetic_trace
from holdfast_simulator.world import World


def test_dots_fill_up_from_below():
    assert braille([0, 1, 2, 3, 4, 4, 0, 4], 4, 1) == ["⢀⣴⣿⢸"]
    assert braille([8, 4], 8, 2) == ["⡇", "⣿"]
    assert braille([0, 0], 0, 1) == ["⠀"]
    assert braille([99, 99], 4, 1) == ["⣿"]  # what is higher than the top is cut


def test_columns_keep_peaks_and_carry_values_over_gaps():
    samples = [Sample(0, 1, 1, 0, 0), Sample(4, 9, 1, 5, 0), Sample(5, 2, 1, 0, 0), Sample(10, 3, 1, 0, 0)]
    assert columns(samples, replicas_of, 5, 10.0) == [1, 1, 9, 9, 3]
    assert columns(samples, waiting_of, 2, 10.0) == [5, 0]


def test_an_svg_has_a_line_for_each_policy_in_both_panels():
    trace = synthetic_trace("synthetic:burst?rate=0.1&runs=30&for=20m", 1)
    world = World()
    outcomes = [
        Simulation(trace, policies_of(name, world)[0], world).run() for name in ("depth", "local", "fixed:2")
    ]
    root = ET.fromstring(svg(outcomes, span))
    names = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{names}path")) == 6
    looks = [path.get("stroke-dasharray") for path in root.iter(f"{names}path")]
    assert len(set(looks[:3])) == 3, "curves that are the same would hide each other"
    assert looks[3:] == looks[:3]
    texts = [text.text or "" for text in root.iter(f"{names}text")]
    assert any(text.startswith("fixed:2: 2.0 replicas, at most 2; wait p50") for text in texts)
    assert "replicas" in texts
    assert [text for text in texts if re.fullmatch("[0-9]+[smhd]", text)] == 2 * [
        f"{minutes}m" for minutes in range(5, 35, 5)
    ]


@pytest.mark.parametrize(
    ("most", "named"),
    [
        (0, [0, 1]),
        (1, [0, 1]),
        (3, [0, 1, 2, 3]),
        (20, [0, 5, 10, 15, 20]),
        (99, [0, 20, 40, 60, 80, 100]),
        (303, [0, 100, 200, 300, 400]),
        (1_022, [0, 500, 1_000, 1_500]),
        (100_000, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
    ],
)
def test_heights_are_named_in_whole_and_round_numbers(most, named):
    assert list(levels(most)) == named


@pytest.mark.parametrize(
    ("end", "step"),
    [
        (59, 10),
        (8 * 60, 60),
        (18 * 60 + 7, 5 * 60),
        (70 * 60 + 13, 10 * 60),
        (2.4 * 3600, 30 * 60),
        (86_400, 3 * 3600),
        (90_000, 6 * 3600),
        (7 * 86_400, 86_400),
        (400 * 86_400, 8 * 7 * 86_400),
    ],
)
def test_times_are_named_in_round_steps(end, step):
    named = list(ticks(end))
    assert named == list(range(0, int(end) + 1, step))
    assert 3 <= len(named) <= 9


def test_a_policy_that_never_finishes_is_cut_and_flattens_nobody():
    trace = synthetic_trace("synthetic:poisson?rate=0.1&for=20m", 1)
    world = World()
    depth, stuck = (
        Simulation(trace, policies_of(name, world)[0], world).run() for name in ("depth", "pending-entries")
    )
    alone, both = ET.fromstring(svg([depth], span)), ET.fromstring(svg([depth, stuck], span))
    path = ".//{http://www.w3.org/2000/svg}path"
    assert both.find(path).get("d") == alone.find(path).get("d")
    lowest = [float(y) for line in both.iterfind(path) for y in re.findall(r"V(-?[0-9.]+)", line.get("d"))]
    assert 0 <= min(lowest) <= max(lowest) <= 210
    *_, caption, cut = (text.text for text in both.iter("{http://www.w3.org/2000/svg}text"))
    assert "cut" not in caption
    assert cut == (
        f"pending-entries: 0.0 replicas, at most 0; wait p50 {span(stuck.wait_seconds.p50)}, "
        f"p95 {span(stuck.wait_seconds.p95)}, p99 {span(stuck.wait_seconds.p99)}; "
        f"waiting cut at {levels(depth.queue_most)[-1]}, goes to {stuck.queue_most}"
    )
    assert columns(stuck.samples, waiting_of, 4, 100.0)[-1] < 20  # what comes after the end is not seen
