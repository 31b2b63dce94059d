"""Prompts that stream through a few rows: every one gets what it would get alone, whatever was there before it."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode, decode_batches
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Constant, Heuristic, Marginal, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.metrics import Trace, acceptance
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.laws import EXACT, autoregressive
from tests.support.sources import replay_outcomes
from tests.support.stateful_laws import SCHEDULES
from tests.support.streams import decode_stream
from tests.support.tiny import network
from tests.support.toys import CPU, Toy, chain, nested, number_of, random_pair, three

V, K, NEW, ENDS = 24, 3, 14, (5, 11)
LENGTHS = (9, 1, 30, 2, 2, 17, 1, 5)  # tokens of the prompts; of new ones there are fewer where an end token comes
PROMPTS = tuple(tuple((7 * n + 3 * i * i + i) % V for i in range(length)) for n, length in enumerate(LENGTHS))
METHODS = ("baseline", "chain", "token-match")


def noisy(target: Any) -> Any:
    draft = copy.deepcopy(target)
    for n, parameter in enumerate(draft.parameters()):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        parameter.data += 0.1 * noise
    return draft


NETWORKS = {name: (network(name, V, 1), noisy(network(name, V, 1))) for name in ("llama", "mistral")}


def method_of(
    kind: str, law: Sampling, name: str = "llama", schedule: Schedule | None = None, fixed: bool = False
) -> Speculate:
    target, draft = (Causal(net, law, V, fixed) for net in NETWORKS[name])
    drafter: Drafter = NoDraft() if kind == "baseline" else ModelDrafter(draft, K, schedule or Constant())
    return Speculate(drafter, target, TokenMatch() if kind == "token-match" else Rejection())


def alone(method: Speculate, prompts: Sequence[Sequence[int]] = PROMPTS, new: int = NEW) -> list[Trace]:
    return [
        decode(method, [prompt], new=new, eos=ENDS, rng=seeded([seed], CPU), device=CPU)[0]
        for seed, prompt in enumerate(prompts)
    ]


def streamed(
    method: Speculate, rows: int, prompts: Sequence[Sequence[int]] = PROMPTS, new: int = NEW, **more: Any
) -> list[Trace]:
    return decode_batches(method, prompts, range(len(prompts)), rows=rows, new=new, eos=ENDS, device=CPU, **more)


def said(traces: Sequence[Trace]) -> list[Any]:
    """Tokens and counts; chances are equal to what rounding leaves."""
    counts = [[(r.drafted, r.tested, r.accepted, r.emitted) for r in trace.rounds] for trace in traces]
    return [(trace.tokens, rows) for trace, rows in zip(traces, counts, strict=True)]


# --- the same tokens as alone -----------------------------------------------------------------------------------------

laws = pytest.mark.parametrize("law", [Sampling(0), Sampling(0.9, top_p=0.95)], ids=["greedy", "sampled"])


@laws
@pytest.mark.parametrize(
    ("name", "kind"), quick_or_slow(product(NETWORKS, METHODS), lambda name, kind: name == "llama" or kind == "chain")
)
def test_every_prompt_gets_what_it_gets_alone(name: str, kind: str, law: Sampling) -> None:
    expected = alone(method_of(kind, law, name))
    assert len({len(trace.tokens) for trace in expected}) > 2, "no end token was met"
    for rows in (2, 3):  # neither divides the number of prompts evenly into rows of the same work
        assert said(streamed(method_of(kind, law, name), rows)) == said(expected)


ADAPTIVE = ["auto", "auto, on the edge", "heuristic", "heuristic from 1"]


@pytest.mark.parametrize("name", quick_or_slow(ADAPTIVE, lambda name: name in ("auto", "heuristic")))
def test_a_schedule_knows_nothing_of_the_text_before(name: str) -> None:
    found = streamed(method_of("chain", Sampling(0), schedule=SCHEDULES[name]), 2)
    assert said(found) == said(alone(method_of("chain", Sampling(0), schedule=SCHEDULES[name])))


def test_prompts_of_one_token_come_before_any_cache_and_after_a_long_one() -> None:
    prompts, law = [(3,), (4,), (9, 9, 8, 7, 2), (6,), (1, 2, 3)], Sampling(1.0)
    for new in (1, 4):
        found = streamed(method_of("chain", law), 2, prompts, new)
        assert said(found) == said(alone(method_of("chain", law), prompts, new))
        adaptive = method_of("chain", law, schedule=Heuristic())
        assert [len(t.tokens) for t in streamed(adaptive, 2, prompts, 1)] == [1] * 5


# --- caches -----------------------------------------------------------------------------------------------------------


def test_a_refill_leaves_the_caches_of_other_rows_as_they_are_and_where_they_are() -> None:
    method = method_of("chain", Sampling(1.0))
    context = begin(PROMPTS[:3], NEW, K, ENDS, CPU)
    method.start(context)
    method.advance(context, None, seeded(range(3), CPU))
    caches = [method.model.cache, method.drafter.model.cache]  # type: ignore[attr-defined]
    stores = [store for cache in caches for layer in cache.rows for store in (layer.keys, layer.values)]
    before = [(store.data_ptr(), store.clone()) for store in stores]
    context.seq[1, :5], context.pos[1] = torch.tensor([1, 2, 3, 4, 5]), 4
    method.admit(context, 1)
    fresh = method_of("chain", Sampling(1.0))
    fresh.start(context.select(torch.tensor([1])))
    anew = [fresh.model.cache, fresh.drafter.model.cache]  # type: ignore[attr-defined]
    expected = [store for cache in anew for layer in cache.rows for store in (layer.keys, layer.values)]
    for (place, old), new, row in zip(before, stores, expected, strict=True):
        assert new.data_ptr() == place
        assert torch.equal(new[[0, 2]], old[[0, 2]])
        assert torch.equal(new[1], row[0])


class Forgetful(Causal):
    """Does not take in the prompt that took the place of another."""

    def admit(self, context: Context, row: int) -> None:
        return


@pytest.mark.mutant(test=test_every_prompt_gets_what_it_gets_alone)
@pytest.mark.parametrize("part", ["target", "draft"], ids="cache of the {} not refilled".format)
def test_a_cache_that_is_not_refilled_is_caught(part: str) -> None:
    expected = alone(method_of("chain", Sampling(0)))
    method = method_of("chain", Sampling(0))
    mutant = Forgetful(NETWORKS["llama"][part == "draft"], Sampling(0), V)
    if part == "target":
        assert said(streamed(replace(method, model=mutant), 2)) != said(expected)
    else:  # its tokens are right all the same: what it drafts is not
        found = streamed(replace(method, drafter=ModelDrafter(mutant, K)), 2)
        assert [t.tokens for t in found] == [t.tokens for t in expected]
        assert alpha(found) < alpha(expected) - 0.05


def alpha(traces: Sequence[Trace]) -> float:
    return acceptance([r for trace in traces for r in trace.rounds]).alpha


# --- exact laws -------------------------------------------------------------------------------------------------------

TOYS = [(0,), (1, 0), (1,)]  # two rows, three prompts: the third takes the row that ends first
END = (0,)


def law_of_stream(method: Speculate, new: int = 2, rows: int = 2) -> Counter[tuple[tuple[int, ...], ...]]:
    """The joint law of all texts, from every combination of draws of all rows."""
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()

    def run(source: Any) -> tuple[tuple[int, ...], ...]:
        work = copy.deepcopy(method)
        traces = decode_stream(work, TOYS, rows=rows, new=new, eos=END, rng=source, device=CPU)
        return tuple(trace.tokens for trace in traces)

    for texts, weight in replay_outcomes(run):
        found[texts] += weight
    return found


def product_law(table: Tensor, new: int = 2) -> Counter[tuple[tuple[int, ...], ...]]:
    """The joint law of independent texts, each with the law of the target alone."""
    laws: list[dict[tuple[int, ...], float]] = []
    for prompt in TOYS:
        law = autoregressive(table, prompt, new, END)
        texts = [(a,) for a in END] + [(a, b) for a in range(2) if a not in END for b in range(2)]
        laws.append({text: float(law[number_of((*prompt, *text), 2)]) for text in texts})
    return Counter({(a, b, c): laws[0][a] * laws[1][b] * laws[2][c] for a in laws[0] for b in laws[1] for c in laws[2]})


def error_of(method: Speculate, table: Tensor) -> float:
    found, expected = law_of_stream(method), product_law(table)
    return max(abs(found[texts] - expected[texts]) for texts in found.keys() | expected.keys())


ENUMERATED = [(kind, 1) for kind in (*METHODS, "auto", "heuristic", "nested")]
ENUMERATED += [(kind, 0) for kind in ("baseline", "chain", "auto", "heuristic")]  # the others would take five seconds


@pytest.mark.parametrize(
    ("kind", "seed"), quick_or_slow(ENUMERATED, lambda kind, seed: seed == 1 or kind == "baseline")
)
def test_texts_are_independent_and_have_the_law_that_they_have_alone(kind: str, seed: int) -> None:
    p, middle, q = three(seed, 2, 4)
    made = {
        "baseline": Speculate(NoDraft(), Toy(p), Rejection()),
        "chain": chain(p, q, 1),
        "token-match": chain(p, q, 1, TokenMatch(), Heuristic()),  # a constant one has fifty times the combinations
        "auto": chain(p, q, 1, schedule=Marginal()),
        "heuristic": chain(p, q, 1, schedule=Heuristic()),
        "nested": nested(p, middle, q, 1, 1),
    }
    assert error_of(made[kind], p) <= EXACT


@pytest.mark.mutant(test=test_texts_are_independent_and_have_the_law_that_they_have_alone)
def test_a_text_that_went_on_with_the_law_of_the_one_before_it_would_be_caught() -> None:
    p, _ = random_pair(0, 2, 4)

    class Stale(Toy):
        """Takes every text for the first one of its row."""

        def number(self, context: Context) -> Tensor:
            return super().number(context) * 0

    assert error_of(Speculate(NoDraft(), Stale(p), Rejection()), p) > 1e-3


# --- time -------------------------------------------------------------------------------------------------------------


def test_prefills_are_timed_apart_and_shares_add_up() -> None:
    now = [0.0]

    class Slow(Toy):
        def start(self, context: Context) -> None:
            now[0] += 10

        def admit(self, context: Context, row: int) -> None:
            now[0] += 100

        def number(self, context: Context) -> Tensor:
            now[0] += 1
            return super().number(context)

    p, _ = random_pair(0, 3, 6)
    clock = WallClock(now=lambda: now[0])
    method = Speculate(NoDraft(), Slow(p), Rejection(), clock=clock)
    prompts = [(0,), (1,), (2,), (1, 1), (0, 2)]
    rng = seeded(range(2), CPU)
    found = decode_stream(method, prompts, rows=2, new=3, eos=(), rng=rng, device=CPU, clock=clock)
    assert [sum(t.seconds for t in found), sum(t.prefill_seconds for t in found)] == pytest.approx([9, 310])
    assert sum(t.spans["verify"] for t in found) == pytest.approx(9)  # three rounds each for 2, 2 and 1 prompts
    assert [len(t.rounds) for t in found] == [3] * 5
