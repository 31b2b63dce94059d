"""Exact distributions of sequences: by enumeration of all outcomes of production code, and by the target alone.

Prefixes are numbered as in `tables`, so all sequences of one length are contiguous, before all longer ones.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.method_files import needs
from specbench.decoding.methods import build
from specbench.decoding.proofs.tables import (
    KINDS,
    TableModel,
    nodes,
    number_of,
    numbers,
    random_pair,
    table_without,
    tokens_of,
)
from specbench.decoding.protocols import After, Drafter
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rounds import budget as allowed
from specbench.decoding.rounds import read_rows, state
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection

# --- enumeration ------------------------------------------------------------------------------------------------------
# A source of randomness that enumerates: production code runs on every possible outcome of its draws.
# Every combination of outcomes becomes a row of one batch. The code runs up to its first draw, the rows
# are multiplied by the outcomes of that draw, and the code runs again, up to its second draw; this
# repeats until a run finds all its outcomes in the script. Outcomes of probability 0 never become rows.

T = TypeVar("T")


class Branch(Exception):  # noqa: N818 - nothing went wrong: the script has ended
    """The probabilities [B, m, n] of the n outcomes of the next m elementary draws of every row."""

    def __init__(self, chances: Tensor) -> None:
        super().__init__(f"a draw that the script does not have: chances {tuple(chances.shape)}")
        self.chances = chances


class OutcomeSource:
    """A source with a given outcome for every draw: `_next` gives it, for chances [..., outcomes] of any shape."""

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        chance = probs.double().clamp(0, 1)
        return self._next(torch.stack([1 - chance, chance], -1)).bool()

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        return self._next(probs.double() / probs.double().sum(-1, keepdim=True))

    def _next(self, chances: Tensor) -> Tensor:
        raise NotImplementedError


class Scripted(OutcomeSource):
    """Plays back the outcomes of a script, one tensor [B, m] per call; raises Branch at the end of the script."""

    def __init__(self, script: list[Tensor]) -> None:
        self._script = script
        self.calls = 0

    def _next(self, chances: Tensor) -> Tensor:
        shape = chances.shape[:-1]
        if self.calls == len(self._script):
            raise Branch(chances.reshape(shape[0], math.prod(shape[1:]), chances.shape[-1]))
        self.calls += 1
        return self._script[self.calls - 1].view(shape)


def spread(chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All outcomes of draws with probabilities [B, m, n]: the row of each [B'], outcomes [B', m], probability [B']."""
    row = torch.arange(chances.shape[0])
    outcomes, weight = row.new_zeros((len(row), 0)), chances.new_ones(len(row))
    for draw in range(chances.shape[1]):
        here = chances[row, draw]
        which, outcome = (here > 0).nonzero(as_tuple=True)
        row, weight = row[which], weight[which] * here[which, outcome]
        outcomes = torch.cat([outcomes[which], outcome.unsqueeze(1)], 1)
    return row, outcomes, weight


def enumerate_outcomes(run: Callable[[Tensor, Source], T], rows: int = 1) -> tuple[T, Tensor, Tensor]:
    """Run `run(origin, source)` on all possible combinations of outcomes of its draws.

    `run` gets origin [B'], the original row (of `rows`) of every row it must work on, and must
    build its state from it. Returns (result of run, weight [B'], origin [B']): weight is the
    probability of the row's combination given its origin.
    """
    origin, weight = torch.arange(rows), torch.ones(rows, dtype=torch.float64)
    script: list[Tensor] = []
    while True:
        source = Scripted(script)
        try:
            result = run(origin, source)
        except Branch as branch:
            row, outcomes, chance = spread(branch.chances)
            origin, weight = origin[row], weight[row] * chance
            script = [*(earlier[row] for earlier in script), outcomes]
        else:
            assert source.calls == len(script), "the code draws less often with more rows: its draws depend on outcomes"
            return result, weight, origin


def replay_outcomes(run: Callable[[Source], T]) -> list[tuple[T, float]]:
    """Run `run(source)` for every combination of outcomes of all its rows; return each result with its probability.

    This is slow, but the batch is that of production: several rows, each with its own outcome.
    """
    found: list[tuple[T, float]] = []
    todo: list[tuple[list[Tensor], float]] = [([], 1.0)]
    while todo:
        script, weight = todo.pop()
        try:
            found.append((run(Scripted(script)), weight))
        except Branch as branch:
            rows, draws, n = branch.chances.shape
            _, outcomes, chance = spread(branch.chances.reshape(1, rows * draws, n))
            joint = zip(outcomes.view(-1, rows, draws), chance.tolist(), strict=True)
            todo += [([*script, outcome], weight * c) for outcome, c in joint]
    return found


# --- exact ------------------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")
PROMPT = (0,)
EXACT = 1e-12
ENUMERABLE = 50_000  # outcomes of one round


def outcomes_of(drafter: Drafter, vocab: int) -> int:
    """The number of outcomes of a round: every node is drawn from the vocabulary or found, and accepted or not."""
    return int(((2 * vocab) if drafter.drawn else 2) ** drafter.room)


@dataclass(frozen=True)
class Outcomes:
    """Every outcome of one round: the context after it, its step, its probability and its original row."""

    context: Context
    step: Step
    weight: Tensor
    origin: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Expectation of values [B'] or [B', n]."""
        return self.weight @ values.double()

    def mass(self, vocab: int, end: int, row: int = 0) -> Tensor:
        """The distribution of an original row after the round: [prefixes of at most `end` tokens]."""
        mass = torch.zeros(nodes(vocab, end), dtype=torch.float64)
        return mass.index_add_(0, numbers(self.context, vocab, len(mass)), self.weight * (self.origin == row))


def one_round(
    method: Speculate, prompts: Sequence[Sequence[int]], end: int, eos: Sequence[int] = (), budget: int | None = None
) -> Outcomes:
    """One round after every prompt, with all its outcomes; a sequence has at most `end` tokens."""

    def run(origin: Tensor, source: Source) -> tuple[Context, Step]:
        context = begin(prompts, end, method.drafter.room, eos, CPU).select(origin)
        context.last.clamp_(max=end - 1)
        method.start(context)
        levels = allowed(method, max(read_rows(state(context))[0])) if budget is None else budget
        return context, method.advance(context, levels, source)

    (context, step), weight, origin = enumerate_outcomes(run, len(prompts))
    method.ended(context, range(context.rows))  # a learning drafter may change for the next round
    return Outcomes(context, step, weight, origin)


def carried_on(mass: Tensor, target: Tensor, end: int, fresh: int, eos: Sequence[int] = ()) -> Tensor:
    """The distribution of finished sequences if every unfinished prefix continues with the target's rows.

    mass [prefixes of at most `end` tokens]; a prefix is finished at `end` tokens or, after its
    first `fresh` tokens, with an end token.
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
    """The target's own distribution of `new` tokens, by multiplication alone."""
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
    distribution = sequence_law(method, target.shape[1], new, prompt, eos, together)
    return error(distribution, autoregressive(target, prompt, new, eos))


def sequence_law(
    method: Speculate, vocab: int, new: int, prompt: Sequence[int], eos: Sequence[int], together: bool
) -> Tensor:
    """The distribution of whole sequences, round after round, states with the same tokens merged.

    By default sequences are decoded alone; with `together`, sequences of all lengths share their rounds.
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


def error(distribution: Tensor, target: Tensor) -> float:
    """Greatest absolute difference; infinite if a number is NaN, or has weight where the target has none."""
    if distribution[target == 0].any() or not distribution.isfinite().all():
        return torch.inf
    return (distribution - target).abs().max().item()


# --- methods ----------------------------------------------------------------------------------------------------------
# Proofs of method files: all outcomes of a method over small table models, compared with its
# target alone. A proof covers the code that runs here and now, the same parts that decode with
# real models; it cannot detect a wrong cache, because tables have none.

LENGTH = 4  # tokens of whole sequences; tables have a row for every prefix of this length
SIZES = ((2, 1), (2, 2), (2, 3), (3, 1), (3, 2))  # (width of the vocabulary, K)
ENDS: tuple[tuple[int, ...], ...] = ((), (1,))  # without an end token, and with one


@dataclass(frozen=True)
class Proof:
    """The worst error of any probability of a joint outcome; sizes: the number of (vocabulary, K) enumerated."""

    error: float
    sizes: int


def table_models(name: str, seed: int, vocab: int, length: int = LENGTH) -> dict[str, TableModel]:
    """A table for every model in a method file; the target is called target."""
    p, q = random_pair(seed, vocab, length)
    others = sorted(needs(name) - {"target"})
    tables = {other: q.roll(row, 0) for row, other in enumerate(others)}
    for other in others:
        if " vocabulary " in other:  # a model with a part of its vocabulary
            tables[other] = table_without(tables[other], vocab - 1)
    return {"target": TableModel(p), **{other: TableModel(table) for other, table in tables.items()}}


def affordable(name: str, vocab: int, k: int) -> bool:
    """Whether the outcomes of one round of a method can be enumerated."""
    return outcomes_of(build(name, table_models(name, 0, vocab), k).drafter, vocab) <= ENUMERABLE


def method_error(name: str, vocab: int, k: int, eos: tuple[int, ...]) -> float:
    """The worst error over all kinds of pairs: of whole sequences over several rounds; for a
    tree, which has too many outcomes for that, of all tokens of one round."""
    found = []
    for seed in range(len(KINDS)):
        models = table_models(name, seed, vocab)
        method, table = build(name, models, k), models["target"].table
        whole = method.drafter.room <= k
        found.append(
            sequence_error(method, table, LENGTH, eos=eos) if whole else block_error(method, table, k + 1, eos=eos)
        )
    return max(found)


def prove(name: str, sizes: Iterable[tuple[int, int]] = SIZES) -> Proof:
    """The proof of a method file, shipped or not, at every size that can be enumerated; UsageError if invalid."""
    chosen = [(vocab, k) for vocab, k in sizes if affordable(name, vocab, k)]
    errors = [method_error(name, vocab, k, eos) for vocab, k in chosen for eos in ENDS]
    return Proof(max(errors, default=float("nan")), len(chosen))


@dataclass(frozen=True, eq=False)
class Misreporting(TableModel):
    """A draft that draws from its table and reports another one as q."""

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(context, k, rng, refeed, after)
        return ids, rows.flip(-1)


def control_error(vocab: int = 3, k: int = 2) -> float:
    """The error of a deliberately broken method: a proof that misses it proves nothing."""
    p, q = random_pair(KINDS.index("dense"), vocab, LENGTH)
    broken = Speculate(ModelDrafter(Misreporting(q), k), TableModel(p), Rejection())
    return sequence_error(broken, p, LENGTH)
