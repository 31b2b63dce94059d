"""Rounds and seconds of what other engines tell of a prompt."""

import pytest

from specbench.backends.engines.external import FIRST_PIECE, STEP, Finished, rounds_of, trace_of, traces_of

NEW = 8


def finished(tokens: int, accepted: tuple[int, ...], drafted: int = 3) -> Finished:
    return Finished(tuple(range(tokens)), 1.0, 8.0, (drafted,) * len(accepted), accepted)


def shape(found: Finished) -> list[tuple[int, int, int, int, int]]:
    return [(one.drafted, one.surplus, one.tested, one.accepted, one.emitted) for one in rounds_of(found, NEW)]


@pytest.mark.parametrize(
    ("found", "rounds"),
    [
        # the first token comes with the prompt; of the last draft only what has a place is tested
        (finished(8, (2, 0, 3)), [(0, 0, 0, 0, 1), (3, 0, 3, 2, 3), (3, 0, 1, 0, 1), (3, 1, 2, 2, 3)]),
        (finished(8, (3, 3)), [(0, 0, 0, 0, 1), (3, 0, 3, 3, 4), (3, 1, 2, 2, 3)]),
        # the sequence ends within a draft: its end was accepted, and nothing after it was tested
        (finished(3, (2,)), [(0, 0, 0, 0, 1), (3, 0, 2, 2, 2)]),
        (finished(1, (1,)), [(0, 0, 0, 0, 1)]),
        (finished(3, ()), [(0, 0, 0, 0, 1)] * 3),
        # steps without a draft are told by nobody
        (finished(8, (1,)), [(0, 0, 0, 0, 1), (3, 0, 2, 1, 2)] + [(0, 0, 0, 0, 1)] * 5),
    ],
)
def test_rounds_are_those_of_the_counts(found: Finished, rounds: list[tuple[int, int, int, int, int]]) -> None:
    assert shape(found) == rounds
    assert sum(one.emitted for one in rounds_of(found, NEW)) == len(found.tokens)
    assert all(len(one.overlap) == one.tested and sum(one.overlap) == one.accepted for one in rounds_of(found, NEW))


def test_of_the_first_token_a_round_is_decoding_and_the_rest_prefill() -> None:
    trace = trace_of(Finished((5, 6, 7), 2.0, 3.0), NEW, None)
    assert (trace.rounds, trace.prefill_seconds, trace.seconds) == ((STEP,) * 3, 1.5, 1.5)
    assert trace.spans == {FIRST_PIECE: 2.0}


def test_prompts_in_flight_together_share_their_seconds() -> None:
    found = traces_of([finished(8, (2, 0, 3))] * 4, NEW, 10.0, 4)
    assert [(one.seconds, one.prefill_seconds) for one in found] == [(2.5, 0.0)] * 4
