"""Rounds that are read late: the same tokens as step by step, no replay started before it was read, no needless round.

The capture is a stand-in that runs the round at once and tells of it when it is asked; CUDA graphs need a GPU.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, buffer_length, decode, decode_batches
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import FLIGHT, Play, Replayed
from specbench.decoding.timing import NullClock
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.device_clock import DeviceTime
from tests.support.tiny import CPU, network

V, K, NEW, LONGEST = 32, 3, 23, 5


made_ready: list[Play] = []  # of the rounds that were made last


@dataclass
class Late:
    """A round that has happened when it is launched, and of which the host knows when it reads it."""

    play: Play
    launched: list["Late"]
    waiting: bool = False
    seen: Tensor = field(init=False)

    def launch(self) -> Tensor:
        assert not self.waiting, "started again before it was read: its events and its state are written over"
        self.waiting = True
        self.launched.append(self)
        self.seen, counts = (result.clone() for result in self.play())
        return counts

    def read(self, idle: bool = False) -> Tensor:
        assert self.waiting
        self.waiting = False
        return self.seen


@dataclass
class Timed(Late):
    """The same on a device whose rounds take 8 s each, one after the other, 1 s of it in the draft."""

    hand: DeviceTime = field(kw_only=True)

    def launch(self) -> Tensor:
        self.hand.capturing = True
        for phase, seconds in (("", 0), ("draft", 1), ("verify", 7)):
            self.hand.now += seconds
            self.hand.clock.lap(phase)
        self.hand.capturing = False
        self.laps = self.hand.clock.captured()
        return super().launch()

    def read(self, idle: bool = False) -> Tensor:
        self.hand.clock.replayed(self.laps, idle)
        return super().read(idle)


def method(name: str, law: Sampling) -> Speculate:
    target, draft = (Causal(network("llama", V, seed, torch.float64), law, V, fixed=True) for seed in (0, 1))
    drafters = {"baseline": NoDraft(), "chain": ModelDrafter(draft, K), "match": ModelDrafter(draft, K)}
    return Speculate(drafters[name], target, TokenMatch() if name == "match" else Rejection())


def replayed(
    name: str, law: Sampling, rows: int, eos: list[int], launched: list[Late], hand: DeviceTime | None = None
) -> tuple[Speculate, Replayed]:
    made = method(name, law)
    length = buffer_length(LONGEST, NEW, made.drafter.room)

    def counted(play: Play) -> Play:
        made_ready.append(play)
        return play

    made_ready.clear()

    def captured(play: Play) -> Late:
        return Late(play, launched) if hand is None else Timed(play, launched, hand=hand)

    rounds = Replayed(made, length, (16, 24, length), counted, captured)
    context = begin([[0, 0]] * rows, 1, made.drafter.room, eos, CPU, length)
    rounds.prime(context, seeded([0] * rows, CPU))
    return made, rounds


def test_the_host_reads_one_round_late() -> None:
    launched: list[Late] = []
    _, rounds = replayed("baseline", Sampling(0), 1, [], launched)
    rounds.begin(begin([[1, 2]], NEW, 0, [], CPU, rounds.length))
    left = NEW
    for done in range(1, NEW):
        left = rounds.advance(left, seeded([0], CPU))
        assert left == NEW - max(done - 1, 0)  # what the host knows is a round old
        assert sum(late.waiting for late in launched[-2:]) == 1
    assert rounds.advance(left, seeded([0], CPU)) == 0  # the last one is waited for
    assert all(one is not other for one, other in pairwise(launched))
    assert len({id(late) for late in launched}) > FLIGHT  # more than one reach was used


def test_a_round_is_made_ready_once_however_often_it_is_captured() -> None:
    _, rounds = replayed("chain", Sampling(0), 1, [], [])
    assert len(made_ready) == len(rounds.reaches) == len(set(map(id, made_ready)))


def test_what_is_under_way_when_a_row_is_refilled_is_read_in_the_time_of_the_rounds() -> None:
    """Else its seconds would count and its phases would not."""
    launched: list[Late] = []
    made, rounds = replayed("chain", Sampling(0), 2, [7, 11], launched)
    prompts, under_way = [[1, 2], [3], [4, 5, 6], [7]], []

    class Regions(NullClock):
        def stop(self) -> tuple[float, dict[str, float]]:
            under_way.append(sum(one.waiting for one in launched))
            return 0.0, {}

    uneven = {"new": NEW, "eos": [7, 11], "device": CPU, "rows": 2, "clock": Regions(), "rounds": rounds}
    decode_batches(made, prompts, range(4), **uneven)  # type: ignore[arg-type]
    assert len(under_way) > 4
    assert not any(under_way)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["baseline", "chain"])
def test_the_clock_counts_the_rounds_that_a_text_needed_and_none_after_its_end(name: str, rows: int) -> None:
    """Else every text that ends by itself pays for one round more, and a method with few rounds for a dear one."""
    law, prompts, eos, launched = Sampling(1.0), [[4], [5, 6, 7, 8, 9]][:rows], [7, 11], []  # type: ignore[var-annotated]
    with DeviceTime().at_hand() as hand:
        made, rounds = replayed(name, law, rows, eos, launched, hand)
        idle = []
        for seed in range(6):
            to: dict[str, Any] = {"new": NEW, "eos": eos, "device": CPU}
            launched.clear()
            seeds = range(rows * seed, rows * (seed + 1))
            found = decode(made, prompts, rng=seeded(seeds, CPU), rounds=rounds, clock=hand.clock, **to)
            known = decode(method(name, law), prompts, rng=seeded(seeds, CPU), **to)
            assert [(t.tokens, t.rounds) for t in found] == [(t.tokens, t.rounds) for t in known]
            needed = max(len(trace.rounds) for trace in known)
            assert {t.seconds for t in found} == {8.0 * needed}
            assert found[0].spans == {"draft": 1.0 * needed, "verify": 7.0 * needed}
            idle.append(len(launched) - needed)
    assert set(idle) == {0, 1}  # texts that ended by themselves, and by the number of tokens
