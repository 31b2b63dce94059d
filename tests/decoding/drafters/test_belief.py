"""What schedules say that they believed of drafted tokens: the chances they went by, each of its own token.

A belief that is the chance of acceptance has no calibration error. That is enumerated, over all that production code
may do, and so is the error of beliefs that are wrong by a known amount.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.cascade import Relay
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.lookup import SuffixLookup
from specbench.decoding.drafters.schedule import Confidence, Constant, Heuristic, Marginal, Schedule
from specbench.decoding.drafters.select import Select
from specbench.decoding.drafters.tree import Merge
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import After, Verifier
from specbench.decoding.randomness import Source, Stream, seeded
from specbench.decoding.types import Context, Draft, Round, packed, read_counts
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.metrics import Trace
from specbench.results.nests import BINS, Bin, calibration_error, curve
from tests.decoding.drafters.test_schedule_decode import K, roomy, run
from tests.decoding.test_greedy import draft_of, random_prompts
from tests.support.laws import EXACT, one_round
from tests.support.toys import CPU, KINDS, PROMPT, Toy, chain, nested, random_pair, three

SINGLE = 1e-6  # a draft's own chance is computed in float32


@dataclass(frozen=True, eq=False)
class Knowing(Toy):
    """Says of its next token how likely the target accepts it, Σ min(p, q), times a factor."""

    target: Tensor | None = None
    factor: float = 1.0

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        assert self.target is not None
        number, ids, rows = self.number(context), list[Tensor](), list[Tensor]()
        for _ in range(k):
            rows.append(self.table[number])
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            number = self.after(number, ids[-1])
            sure = torch.minimum(self.table[number], self.target[number]).sum(-1) * self.factor
            if after is not None and after(ids[-1], rows[-1].log(), sure):
                break
        return torch.stack(ids, 1), torch.stack(rows, 1)


def expected_bins(method: Speculate, k: int, eos: Sequence[int] = ()) -> list[Bin]:
    """The bins of one round, each sum weighed by the chance of its outcome."""
    found = one_round(method, [PROMPT], len(PROMPT) + k + 1, eos)
    sums = torch.zeros((BINS, 5), dtype=torch.float64)
    for done, weight in zip(read_counts(packed(found.step.round)), found.weight.tolist(), strict=True):
        sums += weight * torch.tensor([astuple(one) for one in curve([done])], dtype=torch.float64)
    return [Bin(*one) for one in sums.tolist()]


def share(bins: Sequence[Bin]) -> float:
    return math.fsum(one.accepted for one in bins) / math.fsum(one.tests for one in bins)


# --- beliefs that are exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eos", [(), (1,)], ids=["endless", "eos"])
@pytest.mark.parametrize("threshold", [0.0, 0.4])
def test_a_drafts_own_chance_is_exact_where_its_target_is_itself_and_must_draw_the_same(
    threshold: float, eos: tuple[int, ...]
) -> None:
    for seed in range(len(KINDS)):
        p, _ = random_pair(seed, 3, 4)
        bins = expected_bins(chain(p, p, 3, TokenMatch(), Confidence(threshold)), 3, eos)
        assert calibration_error(bins) <= SINGLE, seed


@pytest.mark.mutant(test=test_a_drafts_own_chance_is_exact_where_its_target_is_itself_and_must_draw_the_same)
def test_a_chance_that_stands_beside_another_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    believed = Confidence.believed

    def shifted(self: Confidence, drawn: int) -> Tensor | None:
        held = believed(self, drawn)
        return None if held is None else held.roll(1, 1)

    monkeypatch.setattr(Confidence, "believed", shifted)
    pairs = (random_pair(seed, 3, 4)[0] for seed in range(len(KINDS)))
    errors = [calibration_error(expected_bins(chain(p, p, 3, TokenMatch(), Confidence(0.0)), 3)) for p in pairs]
    assert max(errors) > 0.05


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_what_a_draft_says_of_its_next_token_is_exact_where_it_is_the_overlap(threshold: float) -> None:
    tested = 0.0
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 4)
        method = Speculate(ModelDrafter(Knowing(q, p), 3, Confidence(threshold)), Toy(p), Rejection())
        bins = expected_bins(method, 3)
        tested += sum(one.tests for one in bins)
        assert sum(one.tests for one in bins) == 0 or calibration_error(bins) <= EXACT, seed
    assert tested > 1


def flat(*row: float) -> Tensor:
    return torch.tensor([row], dtype=torch.float64)


def test_the_prior_of_auto_is_exact_where_acceptance_is_what_it_assumes() -> None:
    """Σ min(p, q) = 0.7 at every place; of 0.5 the belief is 0.2 too much."""
    for p, error in ((flat(0.7, 0.3), 0.0), (flat(0.9, 0.1), 0.2)):
        bins = expected_bins(chain(p, flat(0.4, 0.6), 3, schedule=Marginal()), 3)
        assert sum(one.tests for one in bins) >= 1
        assert calibration_error(bins) == pytest.approx(error, abs=EXACT)


@pytest.mark.parametrize("factor", [0.9, 0.5])
def test_beliefs_that_are_too_small_are_off_by_as_much(factor: float) -> None:
    p, q = random_pair(0, 3, 4)
    method = Speculate(ModelDrafter(Knowing(q, p, factor), 3, Confidence(0.0)), Toy(p), Rejection())
    bins = expected_bins(method, 3)
    assert calibration_error(bins) == pytest.approx((1 - factor) * share(bins))
    assert share(bins) > 0.3


def test_a_drafts_own_chance_says_too_little_where_more_than_the_same_token_is_accepted() -> None:
    p, _ = random_pair(0, 3, 4)
    bins = expected_bins(chain(p, p, 3, Rejection(), Confidence(0.0)), 3)
    assert share(bins) == pytest.approx(1)
    assert calibration_error(bins) > 0.3


# --- each of its own token --------------------------------------------------------------------------------------------


@cache
def decoded(name: str, together: bool) -> list[Trace]:
    schedules: dict[str, Schedule] = {"confidence": Confidence(), "auto": Marginal()}
    prompts = random_prompts(4)
    return run(schedules[name], prompts) if together else [run(schedules[name], (one,))[0] for one in prompts]


@torch.no_grad()
def test_the_chance_of_a_token_is_the_drafts_at_its_place() -> None:
    seen = 0
    for prompt, trace in zip(random_prompts(4), decoded("confidence", together=True), strict=True):
        text = torch.tensor([[*prompt, *trace.tokens]])
        rows = draft_of(torch.float64)(text).logits.log_softmax(-1)[0]
        place = len(prompt)
        for done in trace.rounds:
            for level in range(done.accepted):
                if (held := done.belief[level] if done.belief else None) is not None:
                    assert held == pytest.approx(math.exp(rows[place + level - 1, text[0, place + level]]), rel=1e-5)
                    seen += 1
            place += done.emitted
    assert seen > 20


def test_of_the_last_token_that_a_round_may_draft_nothing_is_asked() -> None:
    for trace in decoded("confidence", together=False):
        for done in roomy(trace):
            asked = [one is not None for one in done.belief]
            assert asked == [level < K - 1 for level in range(done.tested)]


@pytest.mark.parametrize("name", ["confidence", "auto"])
def test_rows_beside_each_other_believe_what_they_do_alone(name: str) -> None:
    for row, alone in zip(decoded(name, together=True), decoded(name, together=False), strict=True):
        assert row.tokens == alone.tokens
        for one, other in zip(roomy(row), roomy(alone), strict=True):  # else a row alone is asked of one token less
            assert [x if x is None else pytest.approx(x, rel=1e-5) for x in other.belief] == list(one.belief)


def test_auto_believes_something_of_every_token_and_not_always_the_same() -> None:
    held = [done.belief for trace in decoded("auto", together=True) for done in trace.rounds]
    lengths = [done.tested for trace in decoded("auto", together=True) for done in trace.rounds]
    assert [len(one) for one in held] == lengths
    assert None not in {x for one in held for x in one}
    assert len({x for one in held for x in one}) > 10


@pytest.mark.parametrize("schedule", [Constant(), Heuristic()], ids=["constant", "heuristic"])
def test_schedules_that_go_by_no_chance_leave_nothing(schedule: Schedule) -> None:
    assert {done.belief for trace in run(schedule, random_prompts(4)) for done in trace.rounds} == {()}


# --- compositions -----------------------------------------------------------------------------------------------------


def drafted(drafter: Relay | Select, prompts: Sequence[Sequence[int]]) -> Draft:
    context = begin(prompts, 12, drafter.room, (), CPU)
    drafter.start(context)
    return drafter.propose(context, 11, seeded(range(len(prompts)), CPU))


def check_own_chances(draft: Draft, asked: Sequence[int]) -> None:
    """Where something is believed it is the chance of that very token; `asked` of every row's tokens have a belief."""
    assert draft.q is not None
    assert draft.belief is not None
    assert draft.valid is not None
    own = draft.q.gather(-1, draft.tree.ids.unsqueeze(-1)).squeeze(-1)
    known = draft.valid & ~draft.belief.isnan()
    assert (draft.belief - own).abs()[known].max() < SINGLE
    assert known.sum(1).tolist() == list(asked)


def test_a_relay_keeps_what_its_legs_believed_beside_their_tokens() -> None:
    _, q = random_pair(0, 3, 8)
    relay = Relay([ModelDrafter(Toy(q), 3, Confidence(0.5)), ModelDrafter(Toy(q), 2)])
    draft = drafted(relay, [[0, 1], [2], [1, 1], [2, 0], [0], [1, 2]])
    lengths = draft.levels - 2  # of the first leg
    assert len(set(lengths.tolist())) > 1, "no row has a hole where another has a token"
    check_own_chances(draft, lengths.clamp_max(2).tolist())  # nothing is asked of the third


def test_what_is_found_is_not_believed_in_and_what_is_drafted_beside_it_is() -> None:
    _, q = random_pair(0, 3, 8)
    made = Select(SuffixLookup(4), ModelDrafter(Toy(q), 2, Confidence(0.0)), 2)
    check_own_chances(drafted(made, [[0, 1, 2, 2, 0, 0, 1], [2, 1], [2, 2, 1, 2, 2]]), [0, 1, 0])


def of_one_round(method: Speculate) -> Round:
    context = begin([[0], [1]], 12, method.drafter.room, (), CPU)
    method.start(context)
    return method.advance(context, 11, seeded([0, 1], CPU)).round


def test_a_tree_and_an_outer_level_believe_nothing_and_lose_no_count() -> None:
    p, middle, q = three(0, 3, 8)
    tree = Merge([ModelDrafter(Toy(q), 3, Confidence()), ModelDrafter(Toy(middle), 2)])
    inside = nested(p, middle, q, 2, 3, schedule=Confidence(0.0))
    for method in (Speculate(tree, Toy(p), Rejection()), inside):
        done = of_one_round(method)
        for counts, chances in zip(read_counts(packed(done)), done.overlap.tolist(), strict=True):
            assert counts.belief == ()
            assert counts.overlap == tuple(chances[: counts.tested])


@pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["rejection", "token-match"])
def test_beliefs_are_read_behind_the_counts_of_inner_levels(verifier: Verifier) -> None:
    p, middle, q = three(0, 3, 8)
    fast = replace(chain(middle, q, 1), length=2)
    done = of_one_round(Speculate(Relay([ModelDrafter(Toy(q), 2, Confidence(0.0)), fast]), Toy(p), verifier))
    assert done.inner
    assert done.belief is not None
    for row, counts in enumerate(read_counts(packed(done))):
        assert len(counts.inner) == 1
        assert counts.overlap == tuple(done.overlap[row, : counts.tested].tolist())
        assert counts.belief[0] == done.belief[row, 0].item()
        assert set(counts.belief[1:]) <= {None}
