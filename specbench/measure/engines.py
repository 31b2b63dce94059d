"""Pairs that differ in their engine alone: loaded at once and measured turn by turn, where memory is enough for all.

Knows pairs that are ready to be measured; must not know how anything is decoded, stored or drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.measure.failures import Failure
from specbench.measure.group import Observer, Past, give_up
from specbench.measure.pair import Measured, Note, Pair, Prepared
from specbench.measure.runner import Bench, measure_beside
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from specbench.wording import grouped

APART = "the engines are measured one after the other: memory is not enough for the weights of all at once"


@dataclass(frozen=True)
class Beside:
    """The same cells on several engines."""

    pairs: Sequence[Prepared]

    @property
    def specs(self) -> list[RunSpec]:
        return [spec for pair in self.pairs for spec in pair.specs]

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        """Load all, and measure the cells of those that could be loaded; the others end with what kept them from it."""
        try:
            found = [(pair, pair.ready(observers, past, note)) for pair in self.pairs]
            cells: list[Cell] = []
            for pair, bench in found:
                if isinstance(bench, Failure):
                    cells += give_up(pair.specs, bench, observers, past)
                else:
                    cells += pair.end_left_out(observers, past)
            benches = [bench for _, bench in found if isinstance(bench, Bench)]
            measured, stop = measure_beside(benches, observers, past)
            for pair, bench in found:
                if isinstance(bench, Bench):
                    pair.warn(note)
            return in_order(self.specs, [*cells, *measured]), stop
        finally:
            for pair in self.pairs:
                pair.unload()


def beside(pairs: Sequence[Pair], note: Note) -> list[Pair | Beside]:
    """The pairs, those together that differ in their engine alone and fit into memory at once."""
    found: list[Pair | Beside] = []
    for some in grouped(pairs, lambda pair: pair.specs[0].baseline.on_any_engine):
        ready = [pair for pair in some if isinstance(pair, Prepared)]
        together = len(ready) > 1 and fit(ready)
        if len(ready) > 1 and not together:
            note(APART)
        rest = [pair for pair in some if not (together and isinstance(pair, Prepared))]
        found += [*([Beside(ready)] if together else []), *rest]
    return found


def fit(pairs: Sequence[Prepared]) -> bool:
    """Whether memory is enough for all at once, as far as anybody knows; a device of its own is counted by itself."""
    for some in grouped(pairs, lambda pair: str(pair.backend.device)):
        known = [pair.fit for pair in some if pair.fit is not None]
        free = [one.free for one in known if one.free is not None]
        if free and sum(one.total for one in known) > min(free):
            return False
    return True


def in_order(specs: Sequence[RunSpec], cells: Sequence[Cell]) -> list[Cell]:
    """The cells in the order of their specs."""
    place = {spec: number for number, spec in enumerate(specs)}
    return sorted(cells, key=lambda cell: place[cell.spec])
