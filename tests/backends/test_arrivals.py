"""Requests that come at times of their own: when, how many are under way, what their waits count from."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from threading import Barrier, Event
from typing import Any

import pytest

from specbench.backends import choose
from specbench.backends.engines.client import Answer
from specbench.backends.engines.server import STEP, Timer, arrival_times, request_of, sent_at, times_of, trace_of
from specbench.errors import ServerError
from specbench.measure import grid
from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, PIECE_GAP, TURN_PART
from specbench.spec import RunSpec
from tests.support.completions import Model, serving
from tests.support.frontdoor import Command
from tests.support.signals import as_a_shell_leaves_them

SOON = 10**6  # requests a second: none of them is waited for
LONG = 60.0  # seconds after which a test that waits for ever fails


class Steps:
    """A clock that goes on only while it is slept by."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    @property
    def timer(self) -> Timer:
        return Timer(lambda: self.at, self.sleep)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def spec_of(stack: ExitStack, drafting: Model, plain: Model, **more: Any) -> RunSpec:
    urls = {"url": stack.enter_context(serving(drafting)), "baseline_url": stack.enter_context(serving(plain))}
    given = {"backend": "openai", "target": "tiny", "max_new_tokens": 12, "k": 3, "arrivals": SOON, **urls, **more}
    return RunSpec.model_validate(given)


# --- when they come ---------------------------------------------------------------------------------------------------


def test_times_are_a_poisson_process_that_a_seed_fixes() -> None:
    times = arrival_times(4.0, 20_001, 7)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) >= 0
    assert mean(gaps) == pytest.approx(1 / 4, rel=5 / math.sqrt(20_000))
    longer = sum(gap > 1 / 4 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(math.exp(-1), abs=5 * math.sqrt(0.25 / 20_000))
    assert arrival_times(4.0, 20_001, 7) == times != arrival_times(4.0, 20_001, 8)
    assert arrival_times(2.0, 50, 7) == pytest.approx([2 * at for at in times[:50]])
    assert arrival_times(1.0, 1, 0) == [0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 9.0])
def test_burstiness_is_the_shape_of_gaps_whose_mean_it_leaves(burstiness: float) -> None:
    """The coefficient of variation of a gamma distribution is 1 ÷ √shape."""
    gaps = [after - before for before, after in pairwise(arrival_times(4.0, 20_001, 7, burstiness))]
    spread = 1 / math.sqrt(burstiness)
    assert mean(gaps) == pytest.approx(1 / 4, rel=5 * spread / math.sqrt(20_000))
    assert stdev(gaps) / mean(gaps) == pytest.approx(spread, rel=0.05)


def test_both_arms_meet_the_same_arrivals_and_burstiness_or_another_turn_change_them() -> None:
    spec = RunSpec(backend="openai", target="tiny", url="http://a", baseline_url="http://b", arrivals=2.0, batch=8)
    ours, again = ([request_of(spec, list(text.encode()), seed) for text in ("a", "b", "c")] for seed in (1, 2))
    assert times_of(spec, ours) == times_of(spec.baseline, again) == times_of(spec.with_(burstiness=1.0), ours)
    assert times_of(spec, ours) != times_of(spec, ours[::-1])
    assert times_of(spec, ours) != times_of(spec.with_(seed=1), ours)
    assert times_of(spec, ours) != times_of(spec.with_(burstiness=0.5), ours)
    with pytest.raises(ValueError, match="add --arrivals"):
        spec.with_(arrivals=None, burstiness=0.5)


def test_requests_are_sent_at_their_times_though_none_has_ended() -> None:
    steps, together = Steps(), Barrier(4)

    def ask(number: int) -> int:
        together.wait(LONG)  # nobody goes on before all are under way
        return number

    found = sent_at([0.0, 1.5, 1.5, 4.0], ask, most=4, timer=steps.timer)
    assert [one.answer for one in found] == [0, 1, 2, 3]
    assert steps.slept == pytest.approx([0.0, 1.5, 0.0, 2.5])
    assert not any(one.held for one in found)
    assert all(one.late >= 0 for one in found)


def test_beyond_the_bound_they_wait_and_their_waits_count_from_when_they_came() -> None:
    steps, fourth = Steps(), Event()

    def sleep(seconds: float) -> None:
        steps.sleep(seconds)
        if len(steps.slept) == 4:
            fourth.set()

    def ask(number: int) -> int:
        if number == 0:
            fourth.wait(LONG)
            steps.at = 109.0
        return number

    found = sent_at([0.0, 1.0, 2.0, 3.0], ask, most=1, timer=Timer(lambda: steps.at, sleep))
    assert [one.held for one in found[:3]] == [False, True, True]  # the first may have ended when the fourth comes
    assert [one.late for one in found[1:]] == pytest.approx([8.0, 7.0, 6.0])


def test_the_first_failure_ends_all() -> None:
    asked: list[int] = []

    def ask(number: int) -> int:
        asked.append(number)
        if number == 1:
            raise ServerError("gone")
        return number

    with pytest.raises(ServerError, match="gone"):
        sent_at([0.0] * 4, ask, most=1, timer=Steps().timer)
    assert asked[:2] == [0, 1]


def test_requests_under_way_are_hung_up_and_not_waited_for() -> None:
    hung_up, began = Event(), time.monotonic()

    def ask(number: int) -> int:
        if number == 2:
            raise ServerError("gone")
        hung_up.wait(LONG)
        return number

    with pytest.raises(ServerError, match="gone"):
        sent_at([0.0] * 3, ask, most=3, hang_up=hung_up.set)
    assert time.monotonic() - began < LONG / 2
    assert hung_up.is_set()


@pytest.mark.parametrize("more", [{"arrivals": None}, {}], ids=["closed", "open"])
def test_an_interrupt_ends_requests_that_hang(stack: ExitStack, more: dict[str, Any]) -> None:
    hangs = Model(fault="stall")
    spec = spec_of(stack, hangs, Model(), batch=4, **more)
    engine = choose.backend_for([spec])
    stack.enter_context(as_a_shell_leaves_them())
    before = set(threading.enumerate())

    def interrupt() -> None:
        while len(hangs.requests) < 4:
            time.sleep(0.01)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    began: list[float] = []
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        engine.prepare(spec, 9)([engine.encode("once upon a time")] * 6, list(range(6)))
    assert time.monotonic() - began[0] < 2
    assert len(hangs.requests) == 4
    assert not [one for one in set(threading.enumerate()) - before if "serve" in one.name]


# --- what becomes of them ---------------------------------------------------------------------------------------------


def test_a_request_has_its_part_of_the_turn_and_seconds_of_its_own_or_of_its_slot() -> None:
    answer = Answer("abc", 3, (2.0, 2.5, 3.0), held=1.5)
    alone, shared = (trace_of(answer, (STEP,) * 3, 0.75, slots) for slots in (0, 4))
    assert alone.spans == shared.spans == {
        FIRST_PIECE: 2.0, LAST_PIECE: 3.0, PIECE_GAP: 0.5, TURN_PART: 0.75, HELD: 1.5,
    }  # fmt: skip
    assert (alone.prefill_seconds, alone.seconds) == (1.5, 1.5)
    assert (shared.prefill_seconds, shared.seconds) == (0.0, 0.75)
    at_once = trace_of(Answer("abc", 3, (2.0,)), (STEP,) * 3, 2.0, 0)
    assert (at_once.prefill_seconds, at_once.seconds) == (0.0, 2.0)
    assert PIECE_GAP not in at_once.spans


def test_all_requests_of_a_turn_may_be_under_way(stack: ExitStack) -> None:
    drafting = Model(k=3, reports="positions", together=Barrier(6))
    spec = spec_of(stack, drafting, Model(), batch=6)
    engine = choose.backend_for([spec])
    traces = engine.prepare(spec, 9)([engine.encode("once upon a time")] * 6, list(range(6)))
    assert drafting.most == 6
    assert len({trace.spans[TURN_PART] for trace in traces}) == 1
    assert all(0 < trace.spans[FIRST_PIECE] <= trace.spans[LAST_PIECE] for trace in traces)
    assert all(trace.seconds + trace.prefill_seconds == pytest.approx(trace.spans[LAST_PIECE]) for trace in traces)
    assert sum(one.accepted for trace in traces for one in trace.rounds) == 6 * 5
    assert any("each is timed separately" in note for note in engine.notes(spec))


def test_a_rate_is_an_axis_and_has_places_enough() -> None:
    specs = grid.cells({"target": "demo", "dataset": "code", "arrivals": ["0.5", "2"], "backend": "openai"})
    assert [(spec.arrivals, spec.batch) for spec in specs] == [(0.5, grid.UNDER_WAY), (2.0, grid.UNDER_WAY)]
    assert [spec.batch for spec in grid.cells({"dataset": "code", "arrivals": 2, "batch": 7})] == [7]


def test_a_run_with_requests_that_come(stack: ExitStack, command: Command, tmp_path: Path) -> None:
    data = tmp_path / "words.jsonl"
    lines = [json.dumps({"id": f"p{n}", "prompt": f"prompt number {n} of these"}) for n in range(32)]
    data.write_text("\n".join(lines))
    drafting, plain = Model(k=3, reports="counters"), Model()
    urls = [stack.enter_context(serving(one)) for one in (drafting, plain)]
    found = command(
        "run", "--backend", "openai", "--url", urls[0], "--baseline-url", urls[1], "--target", "tiny", "--dataset",
        f"jsonl:{data}", "--max-new-tokens", "12", "--k", "3", "--warmup", "1", "--arrivals", str(SOON),
        "--slo", "e2e=60s,tpot:60000ms",
    ).ok()  # fmt: skip
    (row,) = found.table()
    assert (float(row["arrivals"]), row["batch"], row["draws"], row["prompts"]) == (SOON, "32", "2", "32")
    assert len(drafting.requests) == len(plain.requests) == 32 + 1  # a warm-up is one request
    assert (row["slo"], row["slo_share"], row["slo_share_difference"]) == ("tpot=60000ms,e2e=60000ms", "1.0", "0.0")
    assert float(row["goodput"]) == pytest.approx(float(row["served_requests_per_second"]))
    for name in ("ttft", "per_token", "per_step", "latency"):
        points = [float(row[f"{arm}{name}_{point}_ms"]) for arm in ("", "baseline_") for point in ("median", "p99")]
        assert points[0] <= points[1]
        assert points[2] <= points[3]
    assert float(row["served_tokens_per_second"]) == pytest.approx(12 * float(row["served_requests_per_second"]))
    assert row["requests_held"] == "0"
    shown = " ".join(found.out.split())
    assert "requests · within tpot ≤ 60000 ms, e2e ≤ 60000 ms" in shown
    assert "requests a second, at most 32 under way" in shown
    samples = found.samples()
    assert {one.cluster for one in samples} == {"batch 0", "batch 1"}
    assert {one.order for one in samples if one.cluster == "batch 0"} != {
        one.order for one in samples if one.cluster == "batch 1"
    }
