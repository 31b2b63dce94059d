"""Every row that any model gives inside any method is that of one plain pass over the sequence, whoever committed it.

What a model was not fed in time makes drafts worse and leaves what is emitted as it is: no law test can see it. So the
rows are looked at here, those of drafts and of inner levels as well, and every number of tokens that is fed again is
shown to be needed: with one fewer some row is wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

import pytest
from torch import Tensor

from specbench.decoding.decode import begin, buffer_length, decode
from specbench.decoding.drafters.cascade import Relay
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.jacobi import Jacobi, Lookahead
from specbench.decoding.drafters.lookup import Maxgram, PromptLookup
from specbench.decoding.drafters.schedule import Confidence
from specbench.decoding.drafters.tree import Expand, Merge, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import After, Drafter
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.rounds import Whole
from specbench.decoding.tokens import Parent, TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Retrieval, Streaming
from specbench.models.network.causal import Causal
from specbench.models.network.early_exit import pair
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import with_layers
from tests.support.cases import quick_or_slow
from tests.support.streams import decode_stream
from tests.support.tiny import CPU, TOLERANCE, committed, network, path_to, plain_rows

V, NEW = 5, 26
SEEN = 1e-6
LAW = Sampling(1.0)
PROMPTS = ([1, 2, 0, 4, 2, 1, 0], [3], [0, 1, 3])


@dataclass
class Bench:
    """The models of one method, in the order in which they were made; `short`: the one that is fed a token too few."""

    short: int | None = None
    fixed: bool = False
    error: float = 0.0
    numbers: Iterator[int] = field(default_factory=count)
    again: set[int] = field(default_factory=set)  # the models that are fed committed tokens again

    def model(self, seed: int = 0) -> "Checked":
        net = network("llama", V, seed)
        return Checked(self, Causal(net, LAW, V, self.fixed), net, next(self.numbers))

    def early(self) -> tuple["Checked", "Checked"]:
        whole = network("llama", V)
        judge, drafts = pair(Causal(whole, LAW, V, self.fixed), 1)
        first = Checked(self, drafts, with_layers(whole, range(1)), next(self.numbers))
        return Checked(self, judge, whole, next(self.numbers)), first


@dataclass
class Checked:
    """A model whose rows are compared with those of `net` without a cache."""

    bench: Bench
    model: Any
    net: Any
    number: int

    @property
    def static(self) -> bool:
        return bool(self.model.static)

    def start(self, context: Context) -> None:
        self.model.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.model.admit(context, row)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self.model.settle(start, tree, verdict)

    def twin(self) -> "Checked":
        return Checked(self.bench, self.model.twin(), self.net, self.number)

    def successors(self) -> Tensor:
        return self.model.successors()  # type: ignore[no-any-return]

    def retrieved(self, budget: int, chunk: int, tail: int) -> "Checked":
        return Checked(self.bench, self.model.retrieved(budget, chunk, tail), self.net, next(self.bench.numbers))

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self._compared(context, tree, self.model.probs(context, tree, self._fed(refeed)))

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        rows = self.model.expand(context, tree, new, refeed if tree.size else self._fed(refeed), raw)
        self._compared(context, tree, rows.softmax(-1) if raw else rows)
        return rows  # type: ignore[no-any-return]

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = self.model.sample(context, k, rng, self._fed(refeed), after)
        self._compared(context, TokenTree.chain(ids[:, :-1]), rows)
        return ids, rows

    def _fed(self, refeed: int) -> int:
        if refeed:
            self.bench.again.add(self.number)
        return max(refeed - (self.number == self.bench.short), 0)

    def _compared(self, context: Context, tree: TokenTree, rows: Tensor) -> Tensor:
        """The rows [B, m, V], which are those of the last m of the root and the nodes."""
        for row, prefix in enumerate(committed(context)):
            for node in range(tree.size - rows.shape[1], tree.size) if context.live[row] else ():
                path = path_to(tree.parents, node)
                if len(prefix) + len(path) <= int(context.last[row]):  # what comes later is never emitted
                    text = (*prefix, *(int(tree.ids[row, one]) for one in path))
                    error = (rows[row, node - tree.size] - plain_row(self.net, text)).abs().max()
                    self.bench.error = max(self.bench.error, float(error))
        return rows


@lru_cache(maxsize=20_000)
def plain_row(net: Any, text: tuple[int, ...]) -> Tensor:
    """[V] the distribution after a sequence."""
    return plain_rows(net, LAW, V, [text])[0, -1]


def chain(bench: Bench, seed: int = 0, k: int = 3) -> ModelDrafter:
    return ModelDrafter(bench.model(seed), k)


def speculate(bench: Bench, drafter: Drafter) -> Speculate:
    return Speculate(drafter, bench.model(), Rejection())


def inner(bench: Bench, drafter: Drafter, length: int, seed: int = 0) -> Speculate:
    return Speculate(drafter, bench.model(seed), Rejection(), length)


def with_retrieval(bench: Bench) -> Speculate:
    """TriForce with a budget for the whole sequence, so that the middle model is the target."""
    target = bench.model()
    small = ModelDrafter(Streaming(bench.model(), 1, 8), 2)
    return Speculate(Speculate(small, Retrieval(target, 80, 2, 5), Rejection(), 4), target, Rejection())


def with_early_exit(bench: Bench) -> Speculate:
    judge, drafts = bench.early()
    return Speculate(ModelDrafter(drafts, 3), judge, Rejection())


def merged(bench: Bench) -> Merge:
    return Merge([chain(bench, 1, 2), chain(bench, 1, 2)])


def confident(bench: Bench) -> Relay:
    return Relay([ModelDrafter(bench.model(1), 2, Confidence(0.5)), Maxgram(bench.model(1), 2), chain(bench, 1, 2)])


PARENTS = tuple(map(Parent, (-1, -1, 0, 0, 2, 1)))
STATIC: dict[str, Callable[[Bench], Drafter]] = {
    "chain": chain,
    "chain of another": lambda bench: chain(bench, 1),
    "expansion": lambda bench: Expand(bench.model(), 3, [2]),
    "planned": lambda bench: Planned(bench.model(), PARENTS),
    "merge": merged,
    "relay": lambda bench: Relay([chain(bench, 0, 2), chain(bench, 1, 1), chain(bench, 0, 3)]),
    "relay of a lookup": lambda bench: Relay([chain(bench), PromptLookup(2, 2)]),
    "lookahead": lambda bench: Lookahead(2, 3, 2),
    "jacobi": lambda bench: Jacobi(3),
}
OTHERS: dict[str, Callable[[Bench], Drafter]] = {
    "dynamic": lambda bench: Dynamic(bench.model(), 3, 2, 5),
    "streaming": lambda bench: ModelDrafter(Streaming(bench.model(), 1, 6), 3),
    "vertical cascade": lambda bench: inner(bench, chain(bench, 0, 2), 4),
    "three levels": lambda bench: inner(bench, inner(bench, chain(bench, 0, 2), 4), 6),
    "vertical cascade of another": lambda bench: inner(bench, chain(bench, 1, 2), 4),
    "cascade over a merge": lambda bench: inner(bench, merged(bench), 3),
    "relay of a cascade": lambda bench: Relay([inner(bench, chain(bench, 0, 2), 2), chain(bench, 0, 2)]),
    "relay of a confident leg": lambda bench: Relay(
        [ModelDrafter(bench.model(1), 3, Confidence(0.5)), chain(bench, 0, 2)]
    ),
    "relay of a cascade over bigrams": lambda bench: Relay(
        [chain(bench, 1, 3), inner(bench, Maxgram(bench.model(1), 2), 3), PromptLookup(2)]
    ),
    "cascade over a relay": lambda bench: inner(bench, Relay([Maxgram(bench.model(1), 2), chain(bench, 1, 2)]), 5),
    "three levels over a relay": lambda bench: inner(
        bench, inner(bench, Relay([Maxgram(bench.model(1), 2), chain(bench, 1, 2)]), 5, 1), 6
    ),
    "relay of a cascade over a relay": lambda bench: Relay([inner(bench, confident(bench), 4), chain(bench, 1, 2)]),
    "merge of a tree": lambda bench: Merge([chain(bench, 1, 4), Expand(bench.model(1), 3, (2, 2), Top())]),
    "merge of a cascade": lambda bench: Merge([inner(bench, chain(bench, 0, 2), 2), chain(bench, 1, 2)]),
}
METHODS: dict[str, Callable[[Bench], Speculate]] = {
    **{name: lambda bench, make=make: speculate(bench, make(bench)) for name, make in (STATIC | OTHERS).items()},
    "triforce": with_retrieval,
    "early exit": with_early_exit,
}


# Here fewer tokens would do: an early exit finds what the whole network was fed, and a leg or a part that takes rounds
# of its own may have had one without a draft, or not.
AMPLE = {
    *("early exit", "cascade over a merge", "relay of a cascade", "merge of a cascade", "merge of a tree"),
    *("relay of a confident leg", "relay of a cascade over bigrams", "relay of a cascade over a relay"),
    *("cascade over a relay", "three levels over a relay"),
}
TIGHT = {name: make for name, make in METHODS.items() if name not in AMPLE}


def run(make: Callable[[Bench], Speculate], bench: Bench) -> Bench:
    """Decode sequences beside each other, and one alone."""
    method = make(bench)
    for several in (PROMPTS, PROMPTS[:1]):
        decode(method, several, new=NEW, eos=(), rng=seeded(range(len(several)), CPU), device=CPU)
    return bench


@pytest.mark.parametrize("name", quick_or_slow(METHODS, lambda name: list(METHODS).index(name) % 2 == 0))
def test_every_row_is_that_of_a_plain_pass(name: str) -> None:
    assert run(METHODS[name], Bench()).error <= TOLERANCE


@pytest.mark.slow
@pytest.mark.mutant(test=test_every_row_is_that_of_a_plain_pass)
@pytest.mark.parametrize("make", TIGHT.values(), ids=[f"{name}, a token fewer" for name in TIGHT])
def test_a_model_that_is_fed_one_token_fewer_gives_a_wrong_row(make: Callable[[Bench], Speculate]) -> None:
    for number in sorted(run(make, Bench()).again):
        assert run(make, Bench(number)).error > SEEN, number


FOREIGN = Relay.foreign
LESS: dict[str, tuple[str, Callable[[Relay, int, bool], int]]] = {
    "nothing": ("relay", lambda self, place, static: 0),
    "no later leg": ("relay", lambda self, place, static: FOREIGN(self, place, static) * (place == 2)),
    "no earlier leg": ("cascade over a relay", lambda self, place, static: FOREIGN(self, place, static) * (place == 0)),
    "no rounds left out": ("cascade over a relay", lambda self, place, static: FOREIGN(self, place, static=True)),
}


@pytest.mark.parametrize(("name", "foreign"), LESS.values(), ids=LESS)
def test_a_leg_that_is_fed_less_gives_a_wrong_row(name: str, foreign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relay, "foreign", foreign)
    assert run(METHODS[name], Bench()).error > SEEN


@pytest.mark.slow
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_a_sequence_that_takes_the_place_of_another_is_fed_whole(make: Callable[[Bench], Speculate]) -> None:
    bench = Bench()
    decode_stream(make(bench), PROMPTS[::-1], rows=2, new=NEW, eos=(), rng=seeded([0, 1], CPU), device=CPU)
    assert bench.error <= TOLERANCE


@pytest.mark.parametrize("make", STATIC.values(), ids=STATIC)
def test_rows_of_rounds_that_are_one_call_are_those_of_a_plain_pass(make: Callable[[Bench], Drafter]) -> None:
    """Their number of fed tokens is the same in every round, the first one included."""
    bench = Bench(fixed=True)
    method = speculate(bench, make(bench))
    length = buffer_length(len(PROMPTS[0]), NEW, method.drafter.room)
    rounds = Whole(method, length, (length,), lambda play: play)
    rows = len(PROMPTS)
    rounds.prime(begin([[0, 0]] * rows, 1, method.drafter.room, (), CPU, length), seeded([0] * rows, CPU))
    bench.error = 0.0
    decode(method, PROMPTS, new=NEW, eos=(), rng=seeded(range(rows), CPU), device=CPU, rounds=rounds)
    assert bench.error <= TOLERANCE
