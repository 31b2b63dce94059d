"""The likely cause of faults: the property of requests that separates the faulty ones best, or the fault's kind."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import fisher_exact

from specbench.audit.cells import ARRIVING, NEUTRAL_CELL, Cell
from specbench.audit.course import Trial
from specbench.audit.statistics import BEST, OUTSIDE, RECENT, Deviation

BLOCKS = (128, 64, 32, 16)  # tokens of a block of a cache, of several engines
CHUNKS = (64, 256, 512)  # tokens of a prompt that are computed at once
PREFIX = 16  # tokens of a prefix that a cache holds
SURE = 0.05  # p of a separation that is hardly chance
TIMES = 4.0  # as many faults with a property as without it, in relation


@dataclass(frozen=True)
class Case:
    """A request and whether its answer is faulty. order: its place in the audit; known: whether its prefix was sent
    before."""

    cell: Cell
    trial: Trial
    faulty: bool
    order: int
    known: bool

    @property
    def length(self) -> int:
        return len(self.trial.ask.prompt)


def cases_of(some: Sequence[tuple[Cell, Trial, bool]]) -> list[Case]:
    """The requests in the order in which they were sent."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for order, (cell, trial, faulty) in enumerate(some):
        prefix = trial.ask.prompt[:PREFIX]
        found.append(Case(cell, trial, faulty, order, len(prefix) == PREFIX and prefix in seen))
        seen.add(prefix)
    return found


def likely(cases: Sequence[Case], k: int) -> str:
    """The property that separates faulty requests best, with its counts and what it suggests."""
    tables = [(text, table_of(cases, holds)) for text, holds in properties(len(cases), k)]
    able = [(gain(table), text, table) for text, table in tables if separates(table)]
    if not able:
        return "verification accepts or emits tokens that are not the target's best"
    _, text, ((faulty, fine), (others, rest)) = max(able, key=lambda one: one[0])
    return f"{text} ({faulty} of {faulty + fine} such requests are faulty, and {others} of {others + rest} others)"


def properties(requests: int, k: int) -> list[tuple[str, Callable[[Case], bool]]]:
    """What faults may depend on, the most special ones first."""
    blocks: list[tuple[str, Callable[[Case], bool]]] = [
        (f"a wrong block of the cache where a prompt fills {size} tokens", partial(fills, size)) for size in BLOCKS
    ]
    chunks: list[tuple[str, Callable[[Case], bool]]] = [
        (
            f"rows next to the chunks of a long prompt, of requests with at most {size} tokens",
            partial(near_longer, size),
        )
        for size in CHUNKS
    ]
    return [
        (f"rows padded to 1 + K where prompts have at most {k} tokens", lambda one: one.length <= k),
        *blocks,
        ("an end within an accepted run", lambda one: ending(one.trial)),
        ("rows next to the chunks of a long prompt", lambda one: one.cell.name == ARRIVING),
        *chunks,
        ("rows that mix, or a race, under load", lambda one: one.cell.at_once > 1),
        ("a prefix from the cache, where it was sent before", lambda one: one.known),
        ("state that becomes worse from request to request", lambda one: one.order > requests / 2),
    ]


def fills(size: int, one: Case) -> bool:
    """Whether a prompt ends with a block."""
    return one.length % size == 0


def near_longer(size: int, one: Case) -> bool:
    """Whether a request may have been in flight with a longer prompt than `size`, and has a shorter one."""
    longer = any(len(ask.prompt) > size for ask in one.cell.asks)
    return one.cell.at_once > 1 and longer and one.length <= size


def ending(trial: Trial) -> bool:
    fields = trial.ask.fields
    return bool(fields.get("stop") or fields.get("stop_token_ids") or not fields.get("ignore_eos", True))


Counts = tuple[tuple[int, int], tuple[int, int]]  # (faulty, fine) with a property, and without it


def table_of(cases: Sequence[Case], holds: Callable[[Case], bool]) -> Counts:
    counts = [
        [sum(holds(one) == has and one.faulty == bad for one in cases) for bad in (True, False)]
        for has in (True, False)
    ]
    return (counts[0][0], counts[0][1]), (counts[1][0], counts[1][1])


def separates(table: Counts) -> bool:
    """Whether faults are far more frequent with a property, beyond chance."""
    (faulty, fine), (others, rest) = table
    if not faulty or faulty / (faulty + fine) < TIMES * others / max(others + rest, 1):
        return False
    return bool(fisher_exact(np.array(table), alternative="greater").pvalue < SURE)


def gain(table: Counts) -> float:
    """What a property says about faults, in nats (mutual information)."""
    total = sum(map(sum, table))
    columns = [table[0][at] + table[1][at] for at in (0, 1)]
    cells = ((value, sum(row), columns[at]) for row in table for at, value in enumerate(row) if value)
    return math.fsum(value / total * math.log(value * total / (row * column)) for value, row, column in cells)


# --- sampled text -----------------------------------------------------------------------------------------------------

FIELDS = {
    "temperature 0.7": "verification ignores the temperature",
    "top-k 10": "verification ignores top-k",
    "top-p 0.8": "verification ignores top-p",
    "min-p 0.1": "verification ignores min-p, which may hold for bonus tokens only",
    "presence penalty": "verification uses the penalties of the start of a round",
    "frequency penalty": "verification uses the penalties of the start of a round",
    "logit bias": "verification ignores the bias, which may hold for bonus tokens only",
}


def sampled_cause(cell: str, worst: Deviation, bad: Collection[str], forked: bool) -> str:
    """What a deviation of sampled text suggests; `bad`: all cells with one, forked: greedy answers differ, too."""
    if forked:
        return "as of the greedy answers"
    if cell in FIELDS and NEUTRAL_CELL not in bad:
        return FIELDS[cell]
    if worst.name == BEST and worst.found > 0.98:
        return "verification takes the best token at every temperature"
    if worst.name.startswith(OUTSIDE) and worst.found > worst.expected:
        where = "first tokens" if worst.name.endswith("tokens 1 to 8 of an answer") else "tokens"
        return f"{where} that the target hardly ever gives: memory without values, or another model's probabilities"
    if worst.name.startswith(RECENT):
        return "tokens of a round repeat or are avoided: penalties or state of its start"
    return "verification does not draw from the target's distribution: another temperature, a lossy rule of acceptance"


SINGLE = {
    "text after its end": "accepted tokens beyond an end are not cut off",
    "too long": "accepted tokens beyond max_tokens are not cut off",
    "too short": "accepted tokens are counted twice against max_tokens",
    "another prompt": "the two servers read different prompts: a cut prompt, another template or tokenizer",
    "equal samples": "seeds are not used: samples of one prompt are one sample",
    "form": "grammar or tool parser and accepted drafts do not fit together",
    "drafts are not accepted": "a wrong draft or head, another template or quantisation; or sampled drafts that are "
    "judged wrongly",
    "fewer drafts are accepted than the draft model itself agrees with": "another draft, template or quantisation than "
    "was named, or a wrong position or cache of the draft",
    "acceptance falls": "state of the draft or the cache that becomes worse",
    "no draft": "speculation is off, or finds nothing to draft",
    "log-probabilities": "those of drafted tokens are not computed",
    "usage": "accepted tokens are counted twice",
    "server error": "verification fails with these sampling fields, or ends the engine",
}
