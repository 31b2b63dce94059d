"""Wrong rules, most of them found in public code, must be caught by the checks that the exact-law tests use.

A mutant is a name, the setting it is run in and what it replaces in the production code or in a drafter of `toys`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding import loop
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.types import Context, Draft, Round, Verdict, at
from specbench.decoding.verifiers import rejection
from specbench.decoding.verifiers.rejection import Rejection, Siblings, TokenMatch, Walk
from tests.laws import test_exact_law as exact
from tests.support.laws import EXACT, block_error, sequence_error
from tests.support.toys import KINDS, PROMPT, Stopping, Toy, Tree, chain, nested, random_pair, three

CAUGHT = 1e-6
SEEDS = range(len(KINDS))  # a mutant may be out of reach of a pair, for instance where nothing is ever rejected


@dataclass(frozen=True)
class Inner(Rejection):
    """The rule of an inner speculation under a name of its own, so that it can be replaced alone."""


def of_pair(vocab: int, places: int, error: Callable[[Tensor, Tensor], float]) -> Callable[[int], float]:
    return lambda seed: error(*random_pair(seed, vocab, places))


def of_three(error: Callable[[Tensor, Tensor, Tensor], float]) -> Callable[[int], float]:
    return lambda seed: error(*three(seed, 3, 3))


def of_tree(how: str) -> Callable[[int], float]:
    return of_pair(4, 3, lambda p, q: drafted(Tree((Toy(q),), (3,), how), p, 2))


def drafted(drafter: Tree, p: Tensor, tokens: int) -> float:
    return block_error(Speculate(drafter, Toy(p), Rejection()), p, tokens)


# setting: (error of a pair, the test whose check it is)
SETTINGS: dict[str, tuple[Callable[[int], float], Callable[..., None]]] = {
    "chain": (
        of_pair(3, 3, lambda p, q: block_error(chain(p, q, 2), p, 3)),
        exact.test_a_chain_emits_the_law_of_its_target,
    ),
    "match": (
        of_pair(3, 3, lambda p, q: block_error(chain(p, q, 2, TokenMatch()), p, 3)),
        exact.test_a_chain_emits_the_law_of_its_target,
    ),
    "tree, iid": (of_tree("iid"), exact.test_a_tree_emits_the_law_of_its_target),
    "tree, without replacement": (of_tree("without"), exact.test_a_tree_emits_the_law_of_its_target),
    "tree, top-k": (of_tree("top"), exact.test_a_tree_emits_the_law_of_its_target),
    "tree, two models": (
        of_three(lambda p, q, other: drafted(Tree((Toy(q), Toy(other)), (2,)), p, 2)),
        exact.test_siblings_from_different_models_with_duplicates_kept,
    ),
    "ragged": (
        of_pair(3, 3, lambda p, q: drafted(Stopping((Toy(q),), (1, 1), stop=1), p, 3)),
        exact.test_rows_with_fewer_nodes_than_their_batch,
    ),
    "nested": (
        of_three(lambda p, middle, q: block_error(nested(p, middle, q, 1, 2, inside=Inner()), p, 3)),
        exact.test_a_speculation_drafted_by_a_speculation,
    ),
    "sequences": (
        of_pair(3, 5, lambda p, q: sequence_error(chain(p, q, 2), p, 4, PROMPT, eos=(2,), together=True)),
        exact.test_whole_sequences_up_to_a_limit_and_an_end_token,
    ),
}


def worst(setting: str) -> float:
    """The greatest error that the check of a setting finds on the pairs."""
    return max(SETTINGS[setting][0](seed) for seed in SEEDS)


# The production code, as the mutants call it.
ACCEPTANCE, SUBTRACT = rejection.acceptance, rejection.subtract
LEFT_OVER, SIBLINGS = rejection.left_over, rejection.siblings
JUDGE, MATCH, COMMIT, KEEP_ROWS = Rejection.judge, TokenMatch.judge, loop.commit, loop.keep_rows
SAMPLE, GROW = Toy.sample, Tree.propose


def normalised(rows: Tensor) -> Tensor:
    return rows / rows.sum(-1, keepdim=True)


def judged_by(change: Callable[[Tensor], Tensor]) -> Callable[..., Verdict]:
    return lambda self, p, draft, rng: JUDGE(self, change(p), draft, rng)


def from_p(walked: Walk) -> Tensor:
    (x,) = walked.tested  # of a chain
    return at(x.left, walked.last)


def without_the_rejected_only(walked: Walk) -> Tensor:
    (x,) = walked.tested
    ids = torch.cat([x.ids, x.ids[:, -1:]], 1)
    here = (walked.last < x.ids.shape[1]).unsqueeze(1)
    rejected = F.one_hot(ids.gather(1, walked.last.unsqueeze(1)).squeeze(1), x.p.shape[-1]) * here
    return from_p(walked) * (1 - rejected)


def bonus_from(rows: Callable[[Siblings], Tensor]) -> Callable[..., Tensor]:
    def left_over(walked: Walk) -> Tensor:
        (x,) = walked.tested
        full = (walked.last == x.ids.shape[1]).unsqueeze(1)
        return torch.where(full, rows(x), LEFT_OVER(walked))

    return left_over


def without_holes(walked: Walk) -> Tensor:
    """The residual also of drafts that a row does not have."""
    return LEFT_OVER(replace(walked, tested=tuple(replace(x, valid=x.valid | True) for x in walked.tested)))


def against_the_whole_row(p: Tensor, draft: Draft, *rest: Any) -> Iterator[Siblings]:
    """Siblings that are tested as if there were none before them."""
    return (replace(x, p=p[:, x.parents]) for x in SIBLINGS(p, draft, *rest))


def argmax_draft(self: Toy, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
    ids, _ = SAMPLE(Toy(F.one_hot(self.table.argmax(1), self.vocab).double()), context, k, rng, *rest)
    return ids, along(self, context, ids)


def truncated_draft(self: Toy, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
    least = self.table.topk((self.vocab + 1) // 2).values[:, -1:]
    ids, _ = SAMPLE(Toy(normalised(self.table * (self.table >= least))), context, k, rng, *rest)
    return ids, along(self, context, ids)


def along(toy: Toy, context: Context, ids: Tensor) -> Tensor:
    """The rows of the table for drafts ids [B, k], whatever they were drawn from."""
    number, rows = toy.number(context), []
    for token in ids.unbind(1):
        rows.append(toy.table[number])
        number = toy.after(number, token)
    return torch.stack(rows, 1)


def reported(change: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def sample(self: Toy, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
        ids, rows = SAMPLE(self, context, k, rng, *rest)
        return ids, change(rows)

    return sample


def grown(change: Callable[[Tree, Context, Draft], Draft]) -> Callable[..., Draft]:
    return lambda self, context, *arguments: change(self, context, GROW(self, context, *arguments))


def raw_rows(tree: Tree, context: Context, draft: Draft) -> Draft:
    p = tree.models[0].probs(context, draft.tree)
    return replace(draft, q=p[:, [parent + 1 for parent in draft.tree.parents]])


def merged(tree: Tree, context: Context, draft: Draft) -> Draft:
    ids = draft.tree.ids
    again = torch.stack([(ids[:, :node] == ids[:, node : node + 1]).any(1) for node in range(ids.shape[1])], 1)
    return replace(draft, valid=draft.valid & ~again)


def in_order_of_tokens(tree: Tree, context: Context, draft: Draft) -> Draft:
    return replace(draft, tree=replace(draft.tree, ids=draft.tree.ids.sort(1).values))


def redrawn(rule: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """The token after the path is drawn from p once more, whatever became of the draft."""

    def judge(self: Any, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        verdict = rule(self, p, draft, rng)
        row = at(p, verdict.accepted)  # of a chain, the row after the accepted drafts
        return replace(verdict, token=rng.categorical(row, Stream.EMIT))

    return judge


def match_of_argmax(self: TokenMatch, p: Tensor, draft: Draft, rng: Source) -> Verdict:
    return redrawn(lambda self, p, *rest: MATCH(self, F.one_hot(p.argmax(-1), p.shape[-1]).double(), *rest))(
        self, p, draft, rng
    )


def one_accepted_less(context: Context, draft: Draft, verdict: Verdict) -> Round:
    return COMMIT(context, draft, replace(verdict, accepted=(verdict.accepted - 1).clamp_min(0)))


def blind_to_the_end(context: Context, draft: Draft, verdict: Verdict) -> Round:
    return COMMIT(replace(context, eos=context.eos[:0]), draft, verdict)


def without_the_end(context: Context, draft: Draft, verdict: Verdict) -> Round:
    done, last = COMMIT(context, draft, verdict), context.seq.gather(1, context.pos.unsqueeze(1)).squeeze(1)
    context.pos -= (torch.isin(last, context.eos) & (done.emitted > 0)).long()
    return done


def blind_to_the_middle(context: Context, draft: Draft, verdict: Verdict) -> Round:
    """Looks for an end token only at the end of a block."""
    done = blind_to_the_end(context, draft, verdict)
    context.live &= ~torch.isin(context.seq.gather(1, context.pos.unsqueeze(1)).squeeze(1), context.eos)
    return done


def blind_to_the_limit(context: Context, draft: Draft, verdict: Verdict) -> Round:
    return COMMIT(replace(context, last=context.last + 1), draft, verdict)


def one_place_early(q: Tensor, step: Step, offset: Tensor) -> None:
    KEEP_ROWS(q, step, (offset - 1).clamp_min(0))


def rows_of_the_draft(q: Tensor, step: Step, offset: Tensor) -> None:
    p = step.p if step.draft.q is None else torch.cat([step.draft.q, step.p[:, -1:]], 1)
    KEEP_ROWS(q, replace(step, p=p), offset)


# name: (setting, where, what, by what)
MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "accepts always": ("chain", rejection, "acceptance", lambda p, q, ids: torch.ones_like(ids, dtype=torch.double)),
    "accepts never, but emits the residual": ("chain", rejection, "acceptance", lambda p, q, ids: ids * 0.0),
    "accepts with q/p": ("chain", rejection, "acceptance", lambda p, q, ids: ACCEPTANCE(q, p, ids)),
    "accepts with p": ("chain", rejection, "acceptance", lambda p, q, ids: ACCEPTANCE(p, torch.ones_like(q), ids)),
    "accepts with lenience 1/2": ("chain", rejection, "acceptance", lambda p, q, ids: 2 * ACCEPTANCE(p, q, ids)),
    "accepts half as often": ("chain", rejection, "acceptance", lambda p, q, ids: ACCEPTANCE(p, q, ids) / 2),
    "emits from p after a rejection": ("chain", rejection, "left_over", from_p),
    "residual q − p": ("chain", rejection, "subtract", lambda p, q: SUBTRACT(q, p)),
    "residual |p − q|": ("chain", rejection, "subtract", lambda p, q: (p - q).abs()),
    "residual p less the rejected token": ("chain", rejection, "left_over", without_the_rejected_only),
    "bonus from the draft's row": ("chain", rejection, "left_over", bonus_from(lambda x: x.q[:, -1])),
    "bonus from the row before": ("chain", rejection, "left_over", bonus_from(lambda x: x.left[:, -2])),
    "judged by the next row": ("chain", Rejection, "judge", judged_by(lambda p: torch.cat([p[:, 1:], p[:, -1:]], 1))),
    "judged by the row before": ("chain", Rejection, "judge", judged_by(lambda p: torch.cat([p[:, :1], p[:, :-1]], 1))),
    "judged by another sequence's rows": ("chain", Rejection, "judge", judged_by(lambda p: p[:1].expand_as(p))),
    "argmax drafts with softmax q": ("chain", Toy, "sample", argmax_draft),
    "drafts from the top half with all of q": ("chain", Toy, "sample", truncated_draft),
    "q reported times 1.25": ("chain", Toy, "sample", reported(lambda rows: rows * 1.25)),
    "q reported one place late": ("chain", Toy, "sample", reported(lambda rows: rows.roll(1, 1))),
    "rolls back one too far": ("chain", loop, "commit", one_accepted_less),
    "match draws again": ("match", TokenMatch, "judge", redrawn(MATCH)),
    "match with the argmax": ("match", TokenMatch, "judge", match_of_argmax),
    "no residual between siblings": ("tree, iid", rejection, "siblings", against_the_whole_row),
    "residual not normalised": ("tree, iid", rejection, "subtract", lambda p, q: (p - q).clamp_min(0)),
    "duplicate siblings merged": ("tree, iid", Tree, "propose", grown(merged)),
    "duplicates from two models merged": ("tree, two models", Tree, "propose", grown(merged)),
    "siblings in order of their tokens": ("tree, iid", Tree, "propose", grown(in_order_of_tokens)),
    "raw q without replacement": ("tree, without replacement", Tree, "propose", grown(raw_rows)),
    "top-k children with softmax q": ("tree, top-k", Tree, "propose", grown(raw_rows)),
    "drops a token for what it is": (
        "tree, iid",
        Tree,
        "propose",
        grown(lambda tree, context, draft: replace(draft, valid=draft.tree.ids != 0)),
    ),
    "residual of a draft that is not there": ("ragged", rejection, "left_over", without_holes),
    "inner level emits from p, reports p": ("nested", Inner, "judge", redrawn(JUDGE)),
    "inner level reports its draft's rows": ("nested", loop, "keep_rows", rows_of_the_draft),
    "inner level reports one place early": ("nested", loop, "keep_rows", one_place_early),
    "end token ignored": ("sequences", loop, "commit", blind_to_the_end),
    "end token ignored inside a block": ("sequences", loop, "commit", blind_to_the_middle),
    "end token cut off": ("sequences", loop, "commit", without_the_end),
    "limit of a shorter row ignored": ("sequences", loop, "commit", blind_to_the_limit),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_code_as_it_is_passes_on_every_pair(setting: str) -> None:
    assert worst(setting) <= EXACT


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.mutant(test=SETTINGS[MUTANTS[name][0]][1])) for name in MUTANTS]
)
def test_a_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, owner, attribute, wrong = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert worst(setting) > CAUGHT
