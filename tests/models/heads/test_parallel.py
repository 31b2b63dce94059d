"""Heads that draft in one pass: their rows are those of the slow equations, whatever was fed or rejected before."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UsageError
from specbench.models.heads.together import Together
from specbench.models.network.sampling import Sampling
from tests.decoding.test_sync import counted
from tests.support.cases import quick_or_slow
from tests.support.parallel_heads import SWITCHES, K, Made, V, made
from tests.support.random_histories import Chance, accept, append
from tests.support.rows import select
from tests.support.tiny import CPU, committed, context_of, path_to, worst

TIGHT = 1e-11  # the angles of positions are float32 on both sides, and the same
TEXTS = ([2, 0, 4], [0, 1, 2, 2, 3], [1, 0, 0, 2, 1, 0, 5])
TREE = (-1, -1, 0, 1, 1, 2, 4)  # two, three and two nodes in its three levels
PLAIN = Sampling()
OFTEN = {"medusa", "pard", "p-eagle in windows", "dflash", "dflash of speculators in windows", "dspark with a state"}
kinds = pytest.mark.parametrize("name", SWITCHES)
histories = pytest.mark.parametrize("name", quick_or_slow(SWITCHES, lambda name: name in OFTEN))
refeeds = pytest.mark.parametrize("refeed", quick_or_slow([0, 1, 2], lambda refeed: refeed == 1))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: made(name, tmp_path_factory.mktemp("head")) for name in SWITCHES}


def error(head: Made, context: Context, tree: TokenTree, rows: Tensor) -> float:
    """Worst error of rows [B, m, V]: those of the root and the first m − 1 nodes."""
    found = 0.0
    for row, text in enumerate(committed(context)):
        for node in range(-1, rows.shape[1] - 1):
            path = [int(tree.ids[row, one]) for one in path_to(tree.parents, node)]
            expected = PLAIN(head.rows(text, path), V)
            found = max(found, float((rows[row, node + 1] - expected).abs().max()))
    return found


def expanded(model: Together, context: Context, tree: TokenTree, refeed: int = 1) -> Tensor:
    """The rows of the root and of all nodes but those of the last level, level by level, as a drafter asks for them."""
    depths, fed = tree.topology.depths, 0
    rows = [model.expand(context, TokenTree(tree.ids[:, :0], ()), 0, refeed)]
    for level in range(1, max(depths)):
        fed += depths.count(level)
        rows.append(model.expand(context, TokenTree(tree.ids[:, :fed], tree.parents[:fed]), depths.count(level)))
    return torch.cat(rows, 1)


def some_tree(context: Context, seed: int = 0) -> TokenTree:
    return TokenTree(Chance(seed).below(V, (context.rows, len(TREE))), TREE)


@kinds
def test_the_first_rows_are_those_of_the_equations(name: str, heads: dict[str, Made]) -> None:
    head, context = heads[name], context_of(TEXTS, 8, K)
    model, tree = head.model(PLAIN, context), some_tree(context)
    model.start(context)
    ids, rows = model.sample(context, K, seeded(range(len(TEXTS)), CPU))
    assert error(head, context, TokenTree.chain(ids), rows) <= TIGHT
    assert error(head, context, tree, expanded(model, context, tree)) <= TIGHT
    short = TokenTree(tree.ids[:, :5], TREE[:5])
    assert error(head, context, short, model.probs(context, short)) <= TIGHT


def history(head: Made, refeed: int, rounds: int = 8) -> float:
    """Worst error while chains and trees are accepted at random, every third one whole, and rows are replaced."""
    chance, found = Chance(3), 0.0
    context = context_of(TEXTS, (K + 1 + refeed) * rounds, len(TREE))
    model = head.model(PLAIN, context)
    model.start(context)
    for number in range(rounds):
        if number % 2:
            ids, rows = model.sample(context, K, seeded([number] * context.rows, CPU), refeed)
            tree = TokenTree.chain(ids)
        else:
            tree = some_tree(context, number)
            rows = expanded(model, context, tree, refeed)
        found = max(found, error(head, context, tree, rows))
        verdict, start = accept(context, tree, chance, number % 3 == 1, V)
        model.settle(start, tree, verdict)
        if refeed == 0:  # then nobody but this model may have drafted the last token: nothing was accepted whole
            context.pos = torch.minimum(context.pos, start + K)
        append(context, chance, max(refeed - 1, 0), V)
        if number == 3:
            context = context.select(torch.tensor([2, 0, 2]))
            select(model, torch.tensor([2, 0, 2]))
        if number == 5:
            context.seq[1, :4], context.pos[1] = torch.tensor([3, 3, 0, 1]), 3
            moved(model, context)
            model.admit(context, 1)
        moved(model, context)
    return found


def moved(model: Together, context: Context) -> None:
    """The target has been fed: its rows are those of the texts as they are now."""
    taps: Any = model.taps
    taps.context = context


@refeeds
@histories
def test_what_was_fed_before_changes_no_row(name: str, refeed: int, heads: dict[str, Made]) -> None:
    assert history(heads[name], refeed) <= TIGHT


@histories
def test_a_head_that_is_fed_one_token_fewer_gives_a_wrong_row(
    name: str, heads: dict[str, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Together, "_pass", lambda self, context, refeed: fewer(self, context, refeed - 1))
    assert ("medusa" in name) == (history(heads[name], 1) <= TIGHT)  # it looks at one row, and keeps nothing


fewer = Together._pass


@kinds
def test_rows_shifted_by_one_are_others(name: str, heads: dict[str, Made]) -> None:
    head, context = heads[name], context_of(TEXTS, 8, K)
    model: Any = head.model(PLAIN, context)
    model.taps.shift = 1
    model.start(context)
    ids, rows = model.sample(context, K, seeded(range(len(TEXTS)), CPU))
    assert (name == "pard") == (error(head, context, TokenTree.chain(ids), rows) <= 1e-3)  # it reads none


@kinds
def test_a_text_of_one_token_drafts_too(name: str, heads: dict[str, Made]) -> None:
    context = context_of([[3], [2]], 9, K)
    model = heads[name].model(PLAIN, context)
    model.start(context)
    rows = model.sample(context, K, seeded([0, 1], CPU))[1]
    assert torch.allclose(rows.sum(-1), torch.ones(2, K, dtype=rows.dtype))
    assert context.finite.all()


@kinds
def test_a_long_prompt_is_taken_in_by_blocks(
    name: str, heads: dict[str, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for block in (2, 512):
        monkeypatch.setattr("specbench.models.heads.together.BLOCK", block)
        context = context_of(TEXTS, 8, K)
        model = heads[name].model(PLAIN, context)
        model.start(context)
        rows.append(model.sample(context, K, seeded(range(len(TEXTS)), CPU))[1])
    assert worst(*rows) <= TIGHT


@kinds
def test_a_round_is_one_pass_and_neither_reads_nor_sends(name: str, heads: dict[str, Made]) -> None:
    head, context = heads[name], context_of(TEXTS, 8, K)
    model, tree, passes = head.model(PLAIN, context), some_tree(context), []
    model.start(context)
    given = model.taps and head.head.taps and model.taps.at(torch.zeros(3, 30, dtype=torch.long))
    model.taps = None if not head.head.taps else Fixed(given)
    draft = head.head.draft
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(head.head, "draft", lambda *a: (passes.append(1), draft(*a))[1])
        rng = seeded(range(len(TEXTS)), CPU)
        model.sample(context, K, rng)
        expanded(model, context, tree)
        assert len(passes) == 2
        with counted() as counts:
            model.sample(context, K, rng)
            expanded(model, context, tree)
    assert (counts.reads, counts.copies) == (0, 0)


class Fixed:
    """The same rows [B, n, A·H] whatever is asked for: a number of them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def at(self, slots: Tensor, row: int | None = None) -> Tensor:
        return self.rows[:, : slots.shape[1]]


def test_more_tokens_than_a_head_has_are_refused(heads: dict[str, Made]) -> None:
    for name, most in (("medusa", 4), ("dflash", K), ("dflash, some drafts", K + 2), ("dspark", K)):
        assert heads[name].model(PLAIN, depth=most).depth == most
        with pytest.raises(UsageError, match=f"drafts {most} tokens and no more: use --k {most} or less"):
            heads[name].model(PLAIN, depth=most + 1)
    context = context_of(TEXTS, 8, K)
    model = heads["pard"].model(PLAIN, context, depth=2)
    model.start(context)
    with pytest.raises(UsageError, match="prepared for 2 drafted tokens, and 3"):
        model.sample(context, 3, seeded(range(3), CPU))
