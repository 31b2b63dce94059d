"""Laws of whole sequences of methods that remember: earlier rounds decide how many tokens the next one drafts.

All rows go on from round to round in one batch with the state that their own past gave them, so that rows with
different lookaheads are drafted together. Rows with the same tokens and the same state are merged.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.schedule import Confidence, Constant, Heuristic, Marginal, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Source
from specbench.decoding.rounds import budget
from specbench.decoding.types import Context
from specbench.theory.optimum import Costs
from tests.support.laws import autoregressive, error
from tests.support.rows import select
from tests.support.sources import enumerate_outcomes
from tests.support.toys import CPU, PROMPT, levels_left, nodes, numbers

# At an acceptance of 0.7, what `Marginal` believes at first, lookaheads of 1 and 2 are worth the same to 0.02 %.
EDGE = Costs(first=0.0, later=0.288, verify=(1.0,), overhead=0.0)
SCHEDULES: dict[str, Schedule] = {
    "constant": Constant(),
    "auto": Marginal(),
    "auto, on the edge": Marginal(EDGE),
    "heuristic": Heuristic(),
    "heuristic from 1": Heuristic(1),
    "confidence": Confidence(),
    "confidence 0.7": Confidence(0.7),
}


@dataclass
class Histories:
    """laws[i]: the law of the sequences after prompt i, by number of prefix; lengths: of drafts with room for more."""

    laws: list[Tensor]
    lengths: set[int] = field(default_factory=set)


def histories(
    method: Speculate, vocab: int, new: int, prompts: Sequence[Sequence[int]] = (PROMPT,), eos: Sequence[int] = ()
) -> Histories:
    """Every sequence of up to `new` tokens after every prompt, over as many rounds as it takes."""
    method, context = deepcopy(method), begin(prompts, new, method.drafter.room, eos, CPU)
    method.start(context)
    size = nodes(vocab, max(map(len, prompts)) + new)
    found = Histories([torch.zeros(size, dtype=torch.float64) for _ in prompts])
    weight, prompt = torch.ones(len(prompts), dtype=torch.float64), torch.arange(len(prompts))
    while context.live.any():
        roomy = context.live & (context.last - context.pos > method.drafter.room)
        context, method, drafted, chance, row = one_round(context, method)
        found.lengths |= set(drafted[roomy[row]].tolist())
        weight, prompt = weight[row] * chance, prompt[row]
        for number, law in enumerate(found.laws):
            done = ~context.live & (prompt == number)
            law.index_add_(0, numbers(context, vocab, size)[done], weight[done])
        rows, weight = merged(context, method, weight, prompt)
        context, prompt = context.select(rows), prompt[rows]
        select(method, rows)
    return found


def one_round(context: Context, method: Speculate) -> tuple[Context, Speculate, Tensor, Tensor, Tensor]:
    """All outcomes: contexts and methods as they are then, tokens drafted, chances, rows that they come from."""

    def run(origin: Tensor, source: Source) -> tuple[Context, Speculate, Tensor]:
        here, memory = context.select(origin), deepcopy(method)
        select(memory, origin)
        step = memory.advance(here, budget(method, levels_left(context)), source)
        return here, memory, step.round.drafted

    (after, memory, drafted), chance, row = enumerate_outcomes(run, context.rows)
    return after, memory, drafted, chance, row


def merged(context: Context, method: Speculate, weight: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
    """One live row [B'] for each set of rows that cannot be told apart from now on, and their weights together."""
    live = (context.live & (weight > 0)).nonzero()[:, 0]
    seq = torch.where(torch.arange(context.seq.shape[1]) <= context.pos.unsqueeze(1), context.seq, -1)
    key = torch.cat([prompt.unsqueeze(1).double(), seq.double(), *state(method, context.rows)], 1)[live]
    if not len(live):
        return live, weight[live]
    _, group = key.unique(dim=0, return_inverse=True)
    total = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, weight[live])
    return torch.full_like(total, len(weight), dtype=torch.long).scatter_reduce(0, group, live, "amin"), total


def state(method: Speculate, rows: int) -> list[Tensor]:
    """What the schedule of the innermost drafter remembers, as columns [B, n]."""
    drafter = method.drafter
    while isinstance(drafter, Speculate):
        drafter = drafter.drafter
    values = vars(drafter.schedule).values() if isinstance(drafter, ModelDrafter) else ()
    return [v.double().view(rows, -1) for v in values if isinstance(v, Tensor) and v.shape[0] == rows]


def history_error(
    method: Speculate, target: Tensor, new: int, prompts: Sequence[Sequence[int]] = (PROMPT,), eos: Sequence[int] = ()
) -> float:
    """Error of the law of whole sequences, the worst of all prompts."""
    laws = histories(method, target.shape[1], new, prompts, eos).laws
    expected = [autoregressive(target, prompt, new, eos) for prompt in prompts]
    return max(error(law[: len(right)], right) for law, right in zip(laws, expected, strict=True))
