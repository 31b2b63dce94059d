"""TriForce: a draft with a window ← the target over retrieved keys ← the target; exact, whatever the lower two see."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.backends import tiers
from specbench.backends.tiers import Tier
from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Heuristic
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import FromUniforms, SeededUniforms, Source, seeded
from specbench.decoding.rounds import Stepwise
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Draft, Verdict, at
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Retrieval, Streaming
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, block_error, sequence_error
from tests.support.tiny import CPU, network
from tests.support.toys import KINDS, Toy, random_pair, three

V = 24
PROMPTS = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [3], [7, 8, 9, 1, 2, 3, 4, 1, 2, 9, 9, 9, 14, 2, 23, 22, 21, 20, 1])


def triforce(target: Any, draft: Any, length: int, k: int, budget: int = 4, window: int = 2) -> Speculate:
    small = ModelDrafter(Streaming(draft, 1, window), k)
    return Speculate(Speculate(small, Retrieval(target, budget, 2, 5), Rejection(), length), target, Rejection())


def of_networks(law: Sampling, length: int = 4, k: int = 2, **sizes: int) -> Speculate:
    target, draft = (Causal(network("llama", V, seed), law, V) for seed in (0, 1))
    return triforce(target, draft, length, k, **sizes)


def run(method: Speculate, prompts: Any = PROMPTS, new: int = 48, eos: tuple[int, ...] = ()) -> list[Any]:
    return decode(method, prompts, new=new, eos=eos, rng=seeded(range(len(prompts)), CPU), device=CPU)


@pytest.mark.parametrize(("length", "k"), [(1, 1), (2, 1), (2, 2)])
def test_its_law_is_the_targets(length: int, k: int) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 2, 5)
        method = triforce(Toy(p), Toy(q), length, k, window=1)
        assert sequence_error(method, p, 4) <= EXACT
        assert block_error(triforce(Toy(p), Toy(q), 3, 1), p, 4, eos=(1,)) <= EXACT


@dataclass(frozen=True)
class FromTheLaw(Rejection):
    """What the published code does in the middle: after a rejection it draws from the law, not from what is left."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        from specbench.decoding.verifiers import rejection

        kept, rejection.left_over = rejection.left_over, lambda walked: at(walked.tested[-1].left, walked.last)
        try:
            return super().judge(p, draft, rng)
        finally:
            rejection.left_over = kept


def test_the_middle_of_the_published_code_is_seen() -> None:
    p, middle, q = three(0, 2, 5)
    wrong = Speculate(Speculate(ModelDrafter(Toy(q), 1), Toy(middle), FromTheLaw(), 2), Toy(p), Rejection())
    assert block_error(wrong, p, 3) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("eos", [(), (5,)], ids=["endless", "eos"])
def test_greedy_text_is_the_targets_and_rows_do_not_disturb_each_other(eos: tuple[int, ...]) -> None:
    alone = run(Speculate(NoDraft(), Causal(network("llama", V), Sampling(0.0), V), Rejection()), eos=eos)
    together = run(of_networks(Sampling(0.0)), eos=eos)
    assert [trace.tokens for trace in together] == [trace.tokens for trace in alone]
    for prompt, trace in zip(PROMPTS, together, strict=True):
        assert run(of_networks(Sampling(0.0)), [prompt], eos=eos)[0].tokens == trace.tokens
    assert any(r.accepted < r.usable for trace in together for r in trace.rounds)


@pytest.mark.parametrize("law", [Sampling(0.0), Sampling(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 3, 5])
def test_with_a_budget_for_the_whole_text_every_middle_token_is_accepted(law: Sampling, length: int) -> None:
    """Over many rounds, in which keys are chosen anew: no cache misses what another level committed."""
    for trace in run(of_networks(law, length, budget=80)):
        assert all(r.accepted == r.usable for r in trace.rounds)
        assert len(trace.rounds) <= -(-48 // (length + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triforce", "retrieval", "streaming", "chain"])
def test_nothing_is_made_ready_in_timed_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the compile tier, with a stand-in for the compiler: every shape is met before, and gives the same tokens."""
    made, calls = [], {"ready": 0}

    def ready(run: Any, *how: Any) -> Any:
        made.append(run)

        def call(*inputs: Tensor) -> Tensor:
            calls["ready"] += 1
            return run(*inputs)

        return call

    monkeypatch.setattr(tiers, "Regional", ready)
    monkeypatch.setattr(tiers, "NEW", 40)
    tier, law, found = Tier("compile", CPU), Sampling(1.0), []
    for passes in (lambda: None, lambda: tier.passes(False)):
        networks = enumerate(("target", "draft"))
        models = {role: Causal(network("llama", V, seed), law, V, True, passes()) for seed, role in networks}
        method = build(name, models, 2, schedule=Heuristic() if name == "chain" else None)
        found.append((method, models["target"]))
    (plain, _), (method, target) = found
    rounds = tier.rounds(method, 256, 1, [], FromUniforms(SeededUniforms([0], CPU)))
    before, texts = len(made), [[1, 2, 3], list(range(24)) * 6, [5] * 200]
    for seed, text in enumerate(texts):
        arguments: Any = {"new": 40, "eos": (), "device": CPU}
        fast = decode(method, [text], rng=seeded([seed], CPU), rounds=rounds, **arguments)
        slow = decode(plain, [text], rng=seeded([seed], CPU), rounds=Stepwise(plain, 256), **arguments)
        assert [trace.tokens for trace in fast] == [trace.tokens for trace in slow]
    assert len(made) == before > 4
    after = calls["ready"]
    assert after > 100
    context = begin([texts[0]], 1, 60, (), CPU, 256)
    rows = target.probs(context, TokenTree.chain(torch.zeros((1, 33), dtype=torch.long)))
    assert (rows.shape[1], len(made), calls["ready"]) == (34, before, after), "a new shape runs as it is"
