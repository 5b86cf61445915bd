"""Traces: read, written, made up; and what is wrong with one is said with its line."""

from __future__ import annotations

import math
import statistics

import pytest

from holdfast.errors import InputError
from holdfast_simulator.synthetic import synthetic_trace
from holdfast_simulator.traces import Row, read_trace, write_trace
from holdfast_simulator.world import Spread, parse_spread


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_a_csv_is_read_with_or_without_a_header_and_put_in_order(file):
    plain = read_trace(file("2,10\n\n# later\n0.5,3\n"))
    assert (list(plain.arrivals), list(plain.durations)) == ([0.5, 2], [3, 10])
    named = read_trace(file("duration,queue,arrival\n10,q,2\n3,q,0.5\n"))
    assert (named.arrivals, named.durations) == (plain.arrivals, plain.durations)
    assert (named.queue, plain.queue) == ("q", "")
    assert (plain.lanes, plain.seconds, len(plain)) == (None, 2, 2)


def test_a_spreadsheets_mark_is_no_part_of_it(file):
    assert list(read_trace(file("\ufeff0,3\n")).durations) == [3]


@pytest.mark.parametrize("text", ["0,1\n1e308,1\n", "0,1\n1760000000,1\n"])
def test_times_of_two_clocks_are_refused(file, text):
    with pytest.raises(InputError, match="ten years are the most: are all arrivals seconds"):
        read_trace(file(text))


def test_json_lines_are_read(file):
    trace = read_trace(file('{"arrival": 1, "duration": 5}\n\n{"arrival": 0, "duration": 2, "more": 1}\n'))
    assert list(trace.durations) == [2, 5]


def test_times_of_the_clock_are_counted_from_the_first(file):
    trace = read_trace(file("1760000010.5,1\n1760000000.5,1\n"))
    assert list(trace.arrivals) == [0, 10]


def test_priorities_are_lanes(file):
    trace = read_trace(file("arrival,duration,queue,priority\n0,1,,high\n1,1,,\n2,1,,low\n"))
    assert trace.lanes == bytes([1, 2, 3])


def test_one_queue_of_several_is_taken(file):
    path = file("0,1,browser\n1,2,tankpit\n2,3,browser\n")
    assert list(read_trace(path, queue="browser").durations) == [1, 3]
    with pytest.raises(InputError, match="browser, tankpit"):
        read_trace(path)
    with pytest.raises(InputError, match="no run of queue 'x': it has browser, tankpit"):
        read_trace(path, queue="x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1\n1,soon\n", r"trace.csv:2: 'soon' is not a number of seconds"),
        ("0,1\n\n\n5\n", r"trace.csv:4: there is no 'duration'"),
        ("arrival,lasted\n", r"trace.csv:1: the header has no column `duration`"),
        ("0,-1\n", r"trace.csv:1: duration is -1"),
        ("0,nan\n", r"trace.csv:1: duration is nan"),
        ("inf,1\n", r"trace.csv:1: arrival is inf"),
        ("0,1,q,urgent\n", r"trace.csv:1: priority 'urgent'"),
        ('{"arrival": 1, "duration": 5}\n{"arrival": 1}\n', r"trace.csv:2: .*duration"),
        ('{"arrival": 1, "duration": "5"}\n', r"trace.csv:1: Expected `float`"),
        ("{oops\n", r"trace.csv:1: "),
        ("", "holds no runs"),
        ("arrival,duration\n", "holds no runs"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(file, text, said):
    with pytest.raises(InputError, match=said):
        read_trace(file(text))


def test_a_trace_that_can_not_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv can't be read: No such file"):
        read_trace(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="can't be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_trace(tmp_path / "bin")


def test_what_is_written_is_read_again(tmp_path):
    rows = [Row(1_760_000_007.25, 2.5, "q", "high"), Row(1_760_000_000.0, 1.125, "q", "")]
    path = tmp_path / "out.csv"
    assert write_trace(path, rows) == 2
    trace = read_trace(path, queue="q")
    assert (list(trace.arrivals), list(trace.durations)) == ([0, 7.25], [1.125, 2.5])
    assert trace.lanes == bytes([2, 1])
    with pytest.raises(InputError, match="can't be written"):
        write_trace(tmp_path / "no" / "such", rows)


# -- made up


def test_poisson_has_its_rate_and_durations_their_mean():
    for shape in ("exponential", "constant", "lognormal&sigma=0.8"):
        trace = synthetic_trace(f"synthetic:poisson?rate=5&duration=20&shape={shape}&for=2h", 1)
        assert len(trace) == pytest.approx(36_000, rel=0.03)
        assert statistics.fmean(trace.durations) == pytest.approx(20, rel=0.05)
        assert list(trace.arrivals) == sorted(trace.arrivals)
        assert trace.seconds == 7200


def test_lognormal_durations_have_a_heavy_tail():
    trace = synthetic_trace("synthetic:poisson?rate=5&duration=20&shape=lognormal&sigma=1.5&for=2h", 1)
    assert max(trace.durations) > 20 * statistics.median(trace.durations)


def test_a_day_is_busy_at_noon():
    trace = synthetic_trace("synthetic:diurnal?rate=0.1&peak=1", 1)
    noon = sum(1 for at in trace.arrivals if 39_600 <= at < 46_800)
    night = sum(1 for at in trace.arrivals if at < 3600 or at >= 82_800)
    assert noon == pytest.approx(7200, rel=0.1)
    assert night == pytest.approx(720, rel=0.25)
    assert trace.seconds == 86_400


def test_a_burst_comes_at_once_and_a_step_stays():
    burst = synthetic_trace("synthetic:burst?rate=0&runs=50&at=10m&for=1h", 1)
    assert list(burst.arrivals) == [600] * 50
    step = synthetic_trace("synthetic:step?rate=1&peak=10&at=30m&for=1h", 1)
    before = sum(1 for at in step.arrivals if at < 1800)
    assert before == pytest.approx(1800, rel=0.15)
    assert len(step) - before == pytest.approx(18_000, rel=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("synthetic:weekly", "no synthetic trace 'weekly': there are poisson, diurnal, burst, step"),
        ("synthetic:poisson?rte=1", "there is no 'rte'"),
        ("synthetic:poisson?length=1", "there is no 'length'"),
        ("synthetic:poisson?rate=fast", "rate=fast is not a number"),
        ("synthetic:poisson?rate=-1", "rate=-1"),
        ("synthetic:poisson?duration=long", "duration=long is not a time"),
        ("synthetic:poisson?for=0", "for=0"),
        ("synthetic:poisson?shape=square", "shape 'square'"),
        ("synthetic:poisson?rate=1e9&for=1d", "at most 20,000,000"),
        ("synthetic:poisson?rate=0.0000001&for=100000000d", "longer than 3,660 days"),
        ("synthetic:step?rate=1&peak=10&at=1e300", "at= must not be later than for="),
        ("synthetic:burst?rate=0&runs=1&at=2h&for=1h", "at= must not be later than for="),
    ],
)
def test_a_trace_that_can_not_be_made_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        synthetic_trace(text, 1)


# -- times that differ


def test_spreads_are_read():
    assert parse_spread("8s", "--startup") == Spread(8, 8)
    assert parse_spread("500ms..1m", "--startup") == Spread(0.5, 60)
    assert parse_spread("8s~0.4", "--startup") == Spread(8, 8, 0.4)


@pytest.mark.parametrize(
    "text", ["", "soon", "5s..", "20s..5s", "-1s", "8s~", "8s~x", "8s~-1", "0~0.5", "8s~nan"]
)
def test_a_bad_spread_is_refused(text):
    with pytest.raises(InputError, match="--startup"):
        parse_spread(text, "--startup")


def test_spreads_are_drawn_from():
    import random

    rng = random.Random(1)
    assert Spread(8, 8).draw(rng) == 8
    assert all(5 <= Spread(5, 20).draw(rng) <= 20 for _ in range(100))
    drawn = sorted(Spread(8, 8, 0.4).draw(rng) for _ in range(2001))
    assert math.isclose(drawn[1000], 8, rel_tol=0.1)
