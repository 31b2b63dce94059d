"""Drafts that know some tokens: with all of them they are the plain draft, with some the output stays the target's."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.models.network.causal import Causal
from specbench.models.network.recurrent import Recurrent
from specbench.models.network.sampling import ReducedHead, Sampling, known_alone, reduce_head
from tests.support.tiers import as_it_is, compiled, graphs, seen, whole
from tests.support.tiny import CPU, context_of, difference, enumerate_law, network, oracle_law, worst

V = 12
SOME = (0, 2, 3, 7, 11)
LAWS = [
    Sampling(0),
    Sampling(1.0),
    Sampling(0.7, top_k=3),
    Sampling(1.3, top_p=0.6),
    Sampling(min_p=0.2),
    Sampling(eta=0.2),
    Sampling(1e-4),
]
laws = pytest.mark.parametrize("law", LAWS, ids=str)


def reduced(name: str, ids: Sequence[int], vocab: int = V, seed: int = 0) -> Any:
    return reduce_head(copy.deepcopy(network(name, vocab, seed)), ids)


def outputs(net: Any, law: Sampling, width: int = V) -> dict[str, Tensor]:
    """All that a model says after some prompts."""
    model, context = Causal(net, law, width), context_of([[1, 2, 3], [4, 5]], 6, 4)
    model.start(context)
    ids, rows = model.sample(context, 3, seeded([0, 1], CPU))
    tree = TokenTree(ids, (-1, 0, -1))
    found = {"ids": ids, "rows": rows, "probs": model.probs(context, tree), "after": model.successors()}
    found |= {"expand": model.expand(context, tree, 2), "raw": model.expand(context, tree, 2, raw=True)}
    return {**found, "finite": context.finite}


@laws
def test_a_draft_that_knows_all_tokens_is_the_plain_one(law: Sampling) -> None:
    plain, ours = outputs(network("llama", V), law), outputs(reduced("llama", range(V)), law)
    assert all(torch.equal(plain[name], ours[name]) for name in plain)


@laws
@pytest.mark.parametrize("width", [V, V - 2, V + 3], ids=["", "narrower target", "wider target"])
def test_the_rows_are_those_of_a_network_whose_other_logits_are_minus_infinity(law: Sampling, width: int) -> None:
    net = reduced("llama", SOME)
    context = context_of([[1, 2, 3]], 6, 4)
    model = Causal(net, law, width)
    model.start(context)
    _, (rows,) = model.sample(context, 1, seeded([0], CPU))
    logits = network("llama", V)(torch.tensor([[1, 2, 3]])).logits[:, -1]
    logits = logits.masked_fill(~torch.isin(torch.arange(V), torch.tensor(SOME)), -torch.inf)
    assert worst(rows, law(logits.detach(), width)) < 1e-12
    unknown = sorted(set(range(width)) - set(SOME))
    assert torch.equal(rows[:, unknown], torch.zeros(1, len(unknown)).double())


def test_scores_and_guesses_never_name_a_token_that_is_not_known() -> None:
    found = outputs(reduced("llama", SOME), Sampling())
    assert set(found["after"].tolist()) <= set(SOME)
    assert set((found["raw"] > -torch.inf).nonzero()[:, -1].tolist()) == set(SOME)
    assert set(found["ids"].flatten().tolist()) <= set(SOME)


@pytest.mark.parametrize("name", ["llama", "gemma2"])  # one caps its logits, −inf among them
@pytest.mark.parametrize("known", [(0, 2), (1,)])
def test_the_law_of_whole_sequences_is_the_targets(name: str, known: tuple[int, ...]) -> None:
    net, draft = network("llama", 3), reduced(name, known, 3, seed=1)
    drafter = ModelDrafter(Causal(draft, Sampling(), 3), 2)
    method = Speculate(drafter, Causal(net, Sampling(), 3), Rejection())
    exact = enumerate_law(method, [(0, 1, 2)], 4)
    assert difference(exact.law[0], oracle_law(net, Sampling(), 3, (0, 1, 2), 4)) < 1e-12


@pytest.mark.parametrize("method", ["chain", "token-match", "block", "tree-top", "tree-iid", "tree-dynamic"])
def test_greedy_text_is_the_targets_in_every_method(method: str) -> None:
    target, found = network("llama", V), []
    for name in ("baseline", method):
        draft = reduced("llama", SOME) if name == method else None
        models: dict[str, Any] = {
            "target": Causal(target, Sampling(0), V),
            "draft": draft and Causal(draft, Sampling(0), V),
        }
        prompts = [[1, 2, 3, 4], [5], [6, 7]]
        traces = decode(build(name, models, 3), prompts, new=20, eos=(), rng=seeded([5, 6, 7], CPU), device=CPU)
        found.append([trace.tokens for trace in traces])
    assert found[0] == found[1]
    assert set(found[0][0]) - set(SOME), "the draft knows all that is said, which proves nothing"


@pytest.mark.slow
def test_a_round_is_one_graph_and_gives_the_same_tokens() -> None:
    law, prompts, told = Sampling(0.8, top_p=0.9), [[1, 2, 3, 4], [5]], []
    for ready in (as_it_is, compiled("eager")):
        net, draft = network("llama", V, dtype=torch.float32), reduced("llama", SOME).float()
        models: dict[str, Any] = {"target": Causal(net, law, V, fixed=True), "draft": Causal(draft, law, V, fixed=True)}
        before = graphs()
        rounds = whole(build("chain", models, 3), ready, longest=4, new=8, rows=2)
        to: Any = {"new": 8, "eos": (), "rng": seeded([5, 6], CPU), "device": CPU, "rounds": rounds}
        told.append([seen(trace) for trace in decode(rounds.method, prompts, **to)])
    assert told[0] == told[1]
    assert graphs() == before + 1


def test_a_recurrent_network_may_know_some_tokens_and_a_head_gives_its_known_logits_alone() -> None:
    net = reduced("mamba", SOME)
    context = context_of([[1, 2, 3]], 6, 4)
    model = Recurrent(net, Sampling(0.8), V)
    model.start(context)
    _, (rows,) = model.sample(context, 1, seeded([0], CPU))
    assert set(rows[0].nonzero()[:, 0].tolist()) == set(SOME)
    head = ReducedHead(torch.randn(2, 4), torch.tensor([1, 5]), 7)
    hidden = torch.randn(3, 4)
    assert torch.equal(head(hidden)[:, [1, 5]], head.narrow(hidden))
    with known_alone(head) as ids:
        assert ids is head.ids
        assert torch.equal(head(hidden), head.narrow(hidden))
    head(hidden)[:, [1, 5]].sum().backward()
    assert torch.allclose(head.weight.grad, hidden.sum(0).expand(2, -1))


@pytest.mark.parametrize("ids", [(), (0, V), (-1, 2)])
def test_ids_that_a_draft_has_not_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="ids from 0 to 11"):
        reduced("llama", ids)
