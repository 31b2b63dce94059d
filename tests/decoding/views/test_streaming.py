"""A model with sinks and a window: the plain model on a short text of its own, row by row, whatever came before."""

from functools import partial

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.tree import Expand
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Streaming
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.laws.mutants import Mutant, catches, mutants
from tests.support.cases import quick_or_slow
from tests.support.random_histories import Chance, accept, append
from tests.support.tiny import CPU, TOLERANCE, committed, context_of, network, plain_rows, tree_rows, worst

V = 5
HISTORIES = ([2], [0, 1, 2, 2, 4, 3, 1, 0, 2, 3, 3, 1], [1, 0, 0, 2, 1, 0, 4])


def streaming(name: str, sinks: int, window: int) -> Streaming:
    return Streaming(Causal(network(name, V), Sampling(), V), sinks, window)


def short_texts(model: Streaming, context: Context) -> list[list[int]]:
    """What the model says that it sees."""
    left_out, sinks = model._left_out.tolist(), model.sinks
    return [text[:sinks] + text[sinks + n :] for text, n in zip(committed(context), left_out, strict=True)]


def reference(name: str, texts: list[list[int]], tree: TokenTree) -> torch.Tensor:
    """[B, n + 1, V] plain forwards over the texts and what hangs on them."""
    rows = []
    for text, ids in zip(texts, tree.ids, strict=True):
        alone = TokenTree(ids.unsqueeze(0), tree.parents)
        rows.append(tree_rows(network(name, V), Sampling(), V, context_of([text], 4, tree.size), alone))
    return torch.cat(rows)


def error(name: str, sinks: int, window: int, refeed: int = 0, rounds: int = 8, k: int = 3) -> float:
    """Worst error of `sample` and `probs` while chains are accepted at random; also holds the windows to their size."""
    chance, found = Chance(3), 0.0
    judge, draft = streaming(name, sinks, window), streaming(name, sinks, window)
    context = context_of(HISTORIES, (k + 1 + refeed) * rounds, k)
    judge.start(context)
    draft.start(context)
    for number in range(rounds):
        ids, q = draft.sample(context, k, seeded(range(3), CPU), refeed + 1)
        tree = TokenTree.chain(ids)
        p = judge.probs(context, tree, refeed)
        texts = short_texts(draft, context)
        assert texts == short_texts(judge, context)
        assert all(len(text) <= sinks + window for text in texts)
        assert all(len(s) == min(len(t), len(s)) >= min(len(t), sinks + draft.kept)
                   for s, t in zip(texts, committed(context), strict=True))  # fmt: skip
        expected = reference(name, texts, tree)
        found = max(found, worst(p, expected), worst(q, expected[:, :-1]))
        accept(context, tree, chance, number % 3 == 1, V)
        append(context, chance, refeed, V)
    return found


@pytest.mark.parametrize(("sinks", "window", "refeed"), [(2, 6, 0), (0, 4, 2), (1, 1, 1), (4, 5, 0)])
@pytest.mark.parametrize("name", quick_or_slow(["llama", "gpt2", "gemma3"], lambda name: name == "gemma3"))
def test_rows_are_those_of_the_plain_model_on_the_short_text(name: str, sinks: int, window: int, refeed: int) -> None:
    assert error(name, sinks, window, refeed) <= TOLERANCE


@pytest.mark.parametrize("name", quick_or_slow(["llama", "gpt2"], lambda name: name == "gpt2"))
def test_while_the_text_is_short_rows_are_the_models_own(name: str) -> None:
    chance, model = Chance(5), streaming(name, 2, 40)
    context = context_of(HISTORIES, 16, 3)
    model.start(context)
    for _ in range(4):
        tree = TokenTree.chain(chance.below(V, (3, 3)))
        assert worst(model.probs(context, tree), tree_rows(network(name, V), Sampling(), V, context, tree)) <= TOLERANCE
        accept(context, tree, chance, False, V)


@pytest.mark.parametrize(("tokens", "seen"), [(8, 8), (9, 5), (10, 5)])
def test_a_window_slides_as_soon_as_it_is_more_than_full(tokens: int, seen: int) -> None:
    model, context = streaming("llama", 2, 6), context_of([[1] * tokens, [1] * 3, [1] * 8], 4, 0)
    model.start(context)
    assert [len(text) for text in short_texts(model, context)] == [seen, 3, 8]
    context.seq[1, :tokens], context.pos[1] = 1, tokens - 1
    model.admit(context, 1)
    assert [len(text) for text in short_texts(model, context)] == [seen, seen, 8]
    grown = context_of([[1] * 7], 4, 0)
    model.start(grown)
    grown.pos += tokens - 7
    model.probs(grown, TokenTree.chain(grown.seq[:, :0]), refeed=tokens - 7)
    assert [len(text) for text in short_texts(model, grown)] == [seen]


MUTANTS: dict[str, Mutant] = {
    f"a window that slides one token late in {function.__name__}": (
        *(function, "> self.window", "> self.window + 1"),
        partial(test_a_window_slides_as_soon_as_it_is_more_than_full, 9, 5),
    )
    for function in (Streaming.start, Streaming.admit, Streaming._slide)
}


@mutants(MUTANTS)
def test_a_late_window_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


def test_tokens_that_were_taken_back_are_forgotten() -> None:
    """An outer speculation rejects what an inner one has committed, more of it than the window still holds."""
    model, context = streaming("llama", 2, 4), context_of([[0, 1, 2, 3, 4, 3, 2, 1, 0, 1]], 20, 3)
    model.start(context)
    empty = TokenTree.chain(context.seq[:, :0])
    for pos in (9, 11, 13, 15, 17, 9, 12, 5, 6, 13, 3, 14):
        context.pos[:] = pos
        context.seq[0, 6 : pos + 1] = (torch.arange(6, pos + 1) * pos) % V if pos > 5 else 0
        row = model.probs(context, empty, refeed=12)
        (text,) = short_texts(model, context)
        assert len(text) > 2
        assert worst(row, plain_rows(network("llama", V), Sampling(), V, [text])[:, -1:]) <= TOLERANCE


def test_without_refeeding_a_slid_window_would_be_wrong() -> None:
    class Forgets(Streaming):
        def _slide(self, context: Context, drafted: int, refeed: int) -> int:
            super()._slide(context, drafted, refeed)
            return refeed

    model, context = Forgets(Causal(network("llama", V), Sampling(), V), 2, 8), context_of([[0, 1, 2, 3, 4]], 20, 3)
    model.start(context)
    context.pos += 8
    row = model.probs(context, TokenTree.chain(context.seq[:, :0]), refeed=1)
    assert worst(row, plain_rows(network("llama", V), Sampling(), V, short_texts(model, context))[:, -1:]) > 1e-6


def test_more_than_was_expected_can_be_drafted() -> None:
    model, context = streaming("llama", 2, 4), context_of([[0, 1, 2, 3, 4, 3, 2, 1]], 120, 100)
    model.start(context)
    tree = TokenTree.chain(Chance(1).below(V, (1, 100)))
    rows = model.probs(context, tree)
    assert worst(rows, reference("llama", short_texts(model, context), tree)) <= TOLERANCE


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_greedy_text_with_a_window_is_the_targets(tree: bool) -> None:
    target, prompts = Causal(network("llama", V), Sampling(0.0), V), [list(text) for text in HISTORIES]
    model = Streaming(target, 2, 5)
    found, expected = (
        decode(Speculate(drafter, target, Rejection()), prompts, new=40, eos=(), rng=seeded(range(3), CPU), device=CPU)
        for drafter in (Expand(model, 2, [2]) if tree else ModelDrafter(model, 3), NoDraft())
    )
    assert [trace.tokens for trace in found] == [trace.tokens for trace in expected]
