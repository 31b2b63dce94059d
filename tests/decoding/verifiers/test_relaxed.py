"""Relaxed acceptance: lossy inside the spans by the distance that it reports, and exact outside of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.methods import build
from specbench.decoding.timing import EVERYWHERE, Spans
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers import lossy
from specbench.decoding.verifiers.lossy import Relaxed
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.checkpoints.tokenizers import thinking_tokens
from tests.decoding.verifiers.test_lossy import check_every_level
from tests.laws.mutants import Patch, catches_patch, mutants
from tests.support.frontdoor import Command
from tests.support.laws import EXACT, block_error, one_round
from tests.support.tiny import context_of
from tests.support.toys import KINDS, PROMPT, Toy, Tree, chain, random_pair

OPEN, CLOSE = 1, 2
SPANS = Spans((OPEN,), (CLOSE,))
PARENTS = (-1, -1, 0, 0, 1, 2, 5)
HERE = Relaxed(2, 0.4, SPANS)


def written(text: Sequence[int], spans: Spans) -> bool:
    """Whether the token after a text lies inside, as one would say it."""
    inside = spans.begun
    for token in text:
        inside = token in spans.opens or (inside and token not in spans.closes)
    return inside


def random_texts(rows: int = 40) -> tuple[Context, TokenTree]:
    """Rows of several lengths whose entries after the text are not zero, and a tree after each."""
    rng = torch.Generator().manual_seed(0)
    draws = torch.randint(6, (rows, 12 + len(PARENTS)), generator=rng)
    context = context_of([row[: 1 + number % 9].tolist() for number, row in enumerate(draws)], 4, 2)
    stale = torch.arange(context.seq.shape[1]) > context.pos.unsqueeze(1)
    context.seq = torch.where(stale, torch.randint(6, context.seq.shape, generator=rng), context.seq)
    return context, TokenTree(draws[:, 12:], PARENTS)


@pytest.mark.parametrize(
    "spans", [SPANS, Spans((1, 3), (2,)), replace(SPANS, begun=True), Spans(), EVERYWHERE], ids=str
)
def test_a_span_goes_from_after_its_opening_token_up_to_its_closing_one(spans: Spans) -> None:
    context, tree = random_texts()
    found, seen = spans.at_nodes(context, tree), set()
    for row in range(context.rows):
        paths = {ROOT: context.seq[row, : int(context.pos[row]) + 1].tolist()}
        for node, parent in enumerate(tree.parents):
            paths[node] = [*paths[parent], int(tree.ids[row, node])]
        expected = [written(paths[node], spans) for node in range(ROOT, tree.size)]
        assert found[row].tolist() == expected, row
        seen |= set(expected)
    assert seen == ({True, False} if spans.opens else {spans.begun})


def law_error(prompt: Sequence[int], spans: Spans) -> float:
    """Of the first token of a round after a prompt, which is drafted, and the one after it, which is not."""
    errors = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, len(prompt) + 2)
        errors.append(block_error(chain(p, q, 1, Relaxed(2, 0.4, spans)), p, 2, prompt))
    return max(errors)


def test_it_is_exact_where_the_target_does_not_think() -> None:
    for outside in ((0,), (CLOSE,), (OPEN, CLOSE), (OPEN, 0, CLOSE, 0)):
        assert law_error(outside, SPANS) <= EXACT
        assert law_error(outside, Spans()) <= EXACT


def test_it_is_off_where_the_prompt_or_the_text_has_opened_a_span() -> None:
    for inside in ((OPEN,), (OPEN, 0), (CLOSE, OPEN)):
        assert law_error(inside, SPANS) > 0.05


def test_what_it_reports_is_how_far_it_is_off_inside_and_outside() -> None:
    """Of chains and trees that open and close spans on their way: what is reported is what there is."""
    found: list[float] = []
    for shape, how in (((1, 1), "iid"), ((2, 1), "top")):
        for seed in range(len(KINDS)):
            p, q = random_pair(seed, 3, 3)
            tree = Tree((Toy(q),), shape, how)
            method = replace(chain(p, q, 1, HERE), drafter=tree)
            found += check_every_level(one_round(method, [PROMPT], len(PROMPT) + 3), p)
    assert max(found) > 0.1


def test_it_accepts_whatever_rejection_would_and_more() -> None:
    more = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 4, 3)
        means = [
            float(outcomes.mean(outcomes.step.verdict.accepted))
            for rule in (Rejection(), Relaxed(2, 0.4))
            for outcomes in [one_round(chain(p, q, 2, rule), [PROMPT], 4)]
        ]
        assert means[1] >= means[0] - EXACT
        more.append(means[1] - means[0])
    assert max(more) > 0.1


def test_a_token_passes_that_is_one_of_the_likeliest_and_near_the_best() -> None:
    """By hand: within top 2, within δ of the likeliest, and possible."""
    p = torch.tensor([[0.4, 0.35, 0.25, 0.0], [0.34, 0.33, 0.33, 0.0], [0.9, 0.06, 0.04, 0.0], [1.0, 0.0, 0.0, 0.0]])
    context = context_of([[0]] * 4, 2, 2)
    draft: Any = replace(Draft(TokenTree.chain(torch.zeros((context.rows, 1), dtype=torch.long))), text=context)
    found = Relaxed(2, 0.25).passes(p.double().unsqueeze(1).expand(-1, 2, -1), draft)[:, 0]
    assert found.tolist() == [
        [True, True, False, False],
        [True, True, True, False],  # as likely as the second
        [True, False, False, False],
        [True, False, False, False],
    ]
    assert not Relaxed(4, 1.0).passes(p.double().unsqueeze(1).expand(-1, 2, -1), draft)[:, 0, 3].any()


def test_the_word_thinking_of_a_file_is_where_the_target_thinks() -> None:
    p, q = random_pair(0, 3, 3)
    models = {"target": Toy(p), "draft": Toy(q)}
    named: Any = build("relaxed", models, 2, thinking=SPANS).verifier
    assert named == Relaxed(10, 0.6, SPANS)
    assert build("relaxed-everywhere", models, 2, thinking=SPANS).verifier == Relaxed(10, 0.6)


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


def test_a_target_thinks_between_the_tokens_that_its_tokenizer_has_for_it() -> None:
    assert thinking_tokens(Tokenizer("a", "<think>", "</think>")) == ((1,), (2,))
    assert thinking_tokens(Tokenizer("<think>", "b", "[THINK]", "[/THINK]")) == ((2,), (3,))
    assert thinking_tokens(Tokenizer("a")) == ((), ())


def test_a_run_says_where_its_target_never_thinks_aloud_and_is_exact_there(run: Command) -> None:
    found = run("--method", "relaxed", "--temperature", 1)
    (row,) = found.table()
    assert "note: --method relaxed: the target's tokenizer has no thinking tokens" in found.err
    assert (row["status"], row["lossless"]) == ("ok", "lossy")
    assert float(row["law_distance"]) <= 1e-6


# --- mutants ----------------------------------------------------------------------------------------------------------

INSIDE, PASSES, MORE = Spans.inside, Relaxed.passes, lossy.accepted_more


def with_stale(self: Spans, context: Context) -> Tensor:
    return INSIDE(self, replace(context, pos=torch.full_like(context.pos, context.seq.shape[1] - 1)))


def of_the_root(self: Spans, context: Context, tree: TokenTree) -> Tensor:
    return self.inside(context).unsqueeze(1).expand(-1, tree.size + 1)


def also_impossible(self: Relaxed, p: Tensor, draft: Any) -> Tensor:
    return PASSES(self, p, draft) | ((p == 0) & (self.delta == 1))


def of_what_is_left(p: Tensor, draft: Any, rng: Any, chance: Any, taken: Any) -> Any:
    """The distance of a rule that is exact."""
    verdict = MORE(p, draft, rng, chance, taken)
    return replace(verdict, distance=verdict.distance * 0)


SPAN = partial(test_a_span_goes_from_after_its_opening_token_up_to_its_closing_one, SPANS)
PASS = test_a_token_passes_that_is_one_of_the_likeliest_and_near_the_best
MUTANTS: dict[str, Patch] = {
    "stale tokens after the text open spans": (Spans, "inside", with_stale, SPAN),
    "drafted tokens open no span": (Spans, "at_nodes", of_the_root, SPAN),
    "the span of the text before is forgotten": (
        *(Spans, "inside", lambda self, context: torch.zeros_like(context.live), SPAN),
    ),
    "relaxed in all of the text": (
        *(Spans, "inside", lambda self, context: torch.ones_like(context.live)),
        test_it_is_exact_where_the_target_does_not_think,
    ),
    "near 1, not near the best": (
        *(Relaxed, "passes", lambda self, p, draft: PASSES(self, p, draft) & (p >= 1 - self.delta), PASS),
    ),
    "whatever is near the best": (
        *(Relaxed, "passes", lambda self, p, draft: PASSES(replace(self, top=p.shape[-1]), p, draft), PASS),
    ),
    "whatever is among the likeliest": (
        *(Relaxed, "passes", lambda self, p, draft: PASSES(replace(self, delta=1.0), p, draft), PASS),
    ),
    "what is impossible": (Relaxed, "passes", also_impossible, PASS),
    "says that it is exact": (
        *(lossy, "accepted_more", of_what_is_left),
        test_what_it_reports_is_how_far_it_is_off_inside_and_outside,
    ),
}


@mutants(MUTANTS)
def test_a_wrong_rule_is_found_out(mutant: Any) -> None:
    catches_patch(*mutant)
