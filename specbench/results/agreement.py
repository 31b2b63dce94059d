"""Whether engines accepted the same drafted tokens: of greedy decodes with equal texts, prompt by prompt.

Knows cells and samples; must not know engines, tables or files.

A greedy draft of a chain says of every place of a text whether it would have drafted the token there, wherever its
round began. So two engines must agree at every place that both tested. Where an engine tells totals only, its counts
must do: rounds that begin one place apart overtake each other nowhere, so that the engine whose first token comes with
the prompt accepts as many tokens, or one fewer; and one more where a text ends within a draft.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.metrics import Trace
from specbench.results.cells import MEASURED, Cell
from specbench.spec import BASELINE
from specbench.wording import grouped


@dataclass(frozen=True)
class Agreement:
    """Two engines on one cell: prompts, those with equal texts, and of these those with the same verdicts at every
    place that both tested, those with the same counts, and those with neither."""

    one: Cell
    other: Cell
    prompts: int
    equal: int
    verdicts: int
    counts: int

    @property
    def different(self) -> int:
        return self.equal - self.verdicts - self.counts


def agreements(cells: Sequence[Cell]) -> Iterator[Agreement]:
    """Of every cell that several engines measured greedily, the first engine beside each other one."""
    able = [cell for cell in cells if cell.status in MEASURED and cell.samples and comparable(cell)]
    for first, *others in grouped(able, lambda cell: cell.spec.on_any_engine):
        for other in others:
            yield agreement(first, other)


def comparable(cell: Cell) -> bool:
    """Whether texts are greedy, and drafts the same wherever a round begins: those that a model draws."""
    drafted = bool(cell.resolved.get("drafted_by")) and cell.spec.schedule == "constant"
    return cell.spec.temperature == 0 and cell.spec.method != BASELINE and drafted and not cell.resolved.get("carries")


def agreement(one: Cell, other: Cell) -> Agreement:
    theirs = {(s.prompt, s.repeat, s.turn): s.method for s in other.samples}
    both = [(s.method, theirs[key]) for s in one.samples if (key := (s.prompt, s.repeat, s.turn)) in theirs]
    equal = [pair for pair in both if pair[0].tokens == pair[1].tokens]
    same = [pair for pair in equal if same_verdicts(*pair)]
    counted = [pair for pair in equal if pair not in same and same_counts(*pair)]
    return Agreement(one, other, len(both), len(equal), len(same), len(counted))


def same_verdicts(one: Trace, other: Trace) -> bool:
    ours, theirs = verdicts(one), verdicts(other)
    return all(ours[place] == theirs[place] for place in ours.keys() & theirs.keys())


def verdicts(trace: Trace) -> dict[int, bool]:
    """Of every place of a text at which a drafted token was tested, whether it was accepted."""
    found, at = dict[int, bool](), 0
    for one in trace.rounds:
        found |= {at + level: level < one.accepted for level in range(one.tested)}
        at += one.emitted
    return found


def same_counts(one: Trace, other: Trace) -> bool:
    accepted = [sum(r.accepted for r in trace.rounds) for trace in (one, other)]
    within = any(trace.rounds and trace.rounds[-1].accepted == trace.rounds[-1].emitted for trace in (one, other))
    return abs(accepted[0] - accepted[1]) <= 1 + within
