"""Whether engines accepted the same drafted tokens, whichever place their rounds begin at."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.metrics import RoundCounts, Trace
from specbench.results.cells import Cell, agreements, verdicts
from specbench.show.engines import agreement_lines
from tests.support.measured import cell, sample

NEW, K = 12, 3
DRAFTED = (True, True, False, True, True, True, True, False, False, True, True, True)  # at every place of the text


def decoded(first: int, drafted: Sequence[bool] = DRAFTED) -> Trace:
    """A decode in which the first so many tokens come without a draft, of a draft that is right where it says."""
    rounds, at = [RoundCounts(0, 0, 0, 1, ())] * first, first
    while at < NEW:
        usable = min(K, NEW - at - 1)
        right = drafted[at : at + usable]
        accepted = right.index(False) if False in right else usable
        tested = accepted + (accepted < usable)
        rounds.append(RoundCounts(K, tested, accepted, accepted + 1, (1.0,) * accepted + (0.0,) * (tested - accepted)))
        at += accepted + 1
    return Trace(tuple(range(NEW)), tuple(rounds))


def engine(name: str, *traces: Trace, **changes: object) -> Cell:
    samples = [replace(sample(f"p{n}"), method=trace) for n, trace in enumerate(traces)]
    return cell(*samples, backend=name, resolved={"engine": name, "drafted_by": "draft"}, **changes)


def spread(trace: Trace) -> Trace:
    """The same totals, with rounds that tell nothing of places."""
    return replace(trace, rounds=tuple(sorted(trace.rounds, key=lambda one: (one.tested, one.accepted))))


def found(*cells: Cell) -> list[tuple[int, int, int, int, int]]:
    return [(a.prompts, a.equal, a.verdicts, a.counts, a.different) for a in agreements(cells)]


def test_verdicts_are_the_same_though_rounds_begin_elsewhere() -> None:
    ours, theirs = decoded(0), decoded(1)
    assert [one.emitted for one in ours.rounds] != [one.emitted for one in theirs.rounds][1:]
    assert verdicts(ours).keys() != verdicts(theirs).keys()
    assert found(engine("native", ours), engine("vllm", theirs)) == [(1, 1, 1, 0, 0)]


def test_where_only_totals_are_told_these_must_do() -> None:
    ours, theirs = decoded(0), spread(decoded(1))
    assert found(engine("native", ours), engine("llama.cpp", theirs)) == [(1, 1, 0, 1, 0)]


def test_another_draft_is_seen() -> None:
    other = decoded(1, (False,) * NEW)
    assert found(engine("native", decoded(0)), engine("vllm", other)) == [(1, 1, 0, 0, 1)]


@pytest.mark.parametrize("shift", range(8))
def test_rounds_one_place_apart_differ_by_one_token_at_most(shift: int) -> None:
    drafted = DRAFTED[shift:] + DRAFTED[:shift]
    counts = [sum(one.accepted for one in decoded(first, drafted).rounds) for first in (0, 1)]
    assert counts[0] - counts[1] in (0, 1)


def test_other_texts_and_other_cells_are_not_compared() -> None:
    ours, longer = decoded(0), replace(decoded(1), tokens=(*range(NEW - 1), 99))
    assert found(engine("native", ours), engine("vllm", longer)) == [(1, 0, 0, 0, 0)]
    assert found(engine("native", ours, temperature=1.0), engine("vllm", ours, temperature=1.0)) == []
    assert found(engine("native", ours), engine("vllm", ours, k=7)) == []


def test_a_line_says_it() -> None:
    cells = [engine("native", decoded(0), decoded(0)), engine("vllm", decoded(1), decoded(1, (False,) * NEW))]
    (line,) = agreement_lines(agreements(cells))
    assert line == (
        "code, chain, K 4: native and vllm give equal texts on 2 of 2 prompts; of these the same drafted tokens are "
        "accepted on 1, others on 1: not the same draft, or rounding decides"
    )
