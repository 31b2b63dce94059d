"""Distributions of sequences, exactly: by enumeration of all that production code may do, and by the target alone.

Prefixes are numbered as in `tables`, so all sequences of one length lie side by side, in front of all longer ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.proofs.enumeration import enumerate_outcomes
from specbench.decoding.proofs.tables import nodes, number_of, numbers, tokens_of
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source
from specbench.decoding.rounds import budget as allowed
from specbench.decoding.rounds import read_rows, state
from specbench.decoding.types import Context

CPU = torch.device("cpu")
PROMPT = (0,)
EXACT = 1e-12
ENUMERABLE = 50_000  # outcomes of one round


def levels_left(context: Context) -> int:
    """How many tokens the longest live row may still emit; 0 when all have ended. NonFiniteError as in a decode."""
    left, _ = read_rows(state(context))
    return max(left)


def outcomes_of(drafter: Drafter, vocab: int) -> int:
    """In how many ways a round may go on: every node is drawn from the vocabulary or found, and accepted or not."""
    return int(((2 * vocab) if drafter.drawn else 2) ** drafter.room)


@dataclass(frozen=True)
class Outcomes:
    """Every outcome of one round: the context after it, what the round saw, its probability and its original row."""

    context: Context
    step: Step
    weight: Tensor
    origin: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Expectation of values [B'] or [B', n]."""
        return self.weight @ values.double()

    def mass(self, vocab: int, end: int, row: int = 0) -> Tensor:
        """Where the probability of an original row lies after the round: [prefixes of at most `end` tokens]."""
        mass = torch.zeros(nodes(vocab, end), dtype=torch.float64)
        return mass.index_add_(0, numbers(self.context, vocab, len(mass)), self.weight * (self.origin == row))


def one_round(
    method: Speculate, prompts: Sequence[Sequence[int]], end: int, eos: Sequence[int] = (), budget: int | None = None
) -> Outcomes:
    """One round after every prompt, all outcomes of it; a sequence has at most `end` tokens."""

    def run(origin: Tensor, source: Source) -> tuple[Context, Step]:
        context = begin(prompts, end, method.drafter.room, eos, CPU).select(origin)
        context.last.clamp_(max=end - 1)
        method.start(context)
        levels = allowed(method, levels_left(context)) if budget is None else budget
        return context, method.advance(context, levels, source)

    (context, step), weight, origin = enumerate_outcomes(run, len(prompts))
    method.ended(context, range(context.rows))  # what learns may be another drafter in the next round
    return Outcomes(context, step, weight, origin)


def carried_on(mass: Tensor, target: Tensor, end: int, fresh: int, eos: Sequence[int] = ()) -> Tensor:
    """The distribution of finished sequences where every unfinished prefix goes on with the target's rows.

    mass [prefixes of at most `end` tokens]; a prefix is finished at `end` tokens or, after its first `fresh` tokens,
    with an end token.
    """
    mass, vocab = mass.clone(), target.shape[1]
    for length in range(end):
        low, high = (nodes(vocab, length - 1) if length else 0), nodes(vocab, length)
        last = (torch.arange(low, high) - 1) % vocab
        goes_on = ~torch.isin(last, torch.tensor(list(eos))) | (length <= fresh)
        moved = mass[low:high] * goes_on
        mass[low:high] -= moved
        mass[high : nodes(vocab, length + 1)] += (moved.unsqueeze(1) * target[low:high]).flatten()
    return mass


def autoregressive(target: Tensor, prompt: Sequence[int], new: int, eos: Sequence[int] = ()) -> Tensor:
    """The distribution of `new` tokens of the target itself, by multiplication alone."""
    mass = target.new_zeros(nodes(target.shape[1], len(prompt) + new))
    mass[number_of(prompt, target.shape[1])] = 1
    return carried_on(mass, target, len(prompt) + new, len(prompt), eos)


def block_error(
    method: Speculate, target: Tensor, new: int, prompt: Sequence[int] = PROMPT, eos: Sequence[int] = ()
) -> float:
    """Error of the joint distribution of `new` tokens: one round, shorter blocks completed by the target."""
    end = len(prompt) + new
    outcomes = one_round(method, [prompt], end, eos)
    mass = outcomes.mass(target.shape[1], end)
    return error(carried_on(mass, target, end, len(prompt), eos), autoregressive(target, prompt, new, eos))


def sequence_error(
    method: Speculate,
    target: Tensor,
    new: int,
    prompt: Sequence[int] = PROMPT,
    eos: Sequence[int] = (),
    together: bool = False,
) -> float:
    """Error of the distribution of whole sequences of up to `new` tokens, over as many rounds as they take."""
    law = sequence_law(method, target.shape[1], new, prompt, eos, together)
    return error(law, autoregressive(target, prompt, new, eos))


def sequence_law(
    method: Speculate, vocab: int, new: int, prompt: Sequence[int], eos: Sequence[int], together: bool
) -> Tensor:
    """The distribution of whole sequences, round after round, states with the same tokens merged.

    Rounds are those of sequences decoded alone; `together`, sequences of all lengths share their rounds.
    """
    end = len(prompt) + new
    live = torch.zeros(nodes(vocab, end), dtype=torch.float64)
    live[number_of(prompt, vocab)] = 1
    done = torch.zeros_like(live)
    while (live > 0).any():
        states = live.nonzero().flatten().tolist()
        prefixes = [tokens_of(state, vocab) for state in states]
        shortest = len(prefixes[0])
        rows = [row for row, prefix in enumerate(prefixes) if together or len(prefix) == shortest]
        outcomes = one_round(method, [prefixes[row] for row in rows], end, eos)
        here = torch.tensor([states[row] for row in rows])
        mass = outcomes.weight * live[here][outcomes.origin]
        live[here] = 0
        reached, alive = numbers(outcomes.context, vocab, len(live)), outcomes.context.live
        live.index_add_(0, reached[alive], mass[alive])
        done.index_add_(0, reached[~alive], mass[~alive])
    return done


def error(law: Tensor, target: Tensor) -> float:
    """Greatest absolute difference; infinite where a number is none, or has weight where the target has none."""
    if law[target == 0].any() or not law.isfinite().all():
        return torch.inf
    return (law - target).abs().max().item()
