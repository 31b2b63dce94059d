"""A draft that learns: exact whatever it has learned, what it learns from, and that it does learn."""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.divergences import ForwardKL
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.distilled import Distilled, Rejections
from specbench.decoding.drafters.tree import Expand, Independent
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.proofs.exact import method_error, sequence_error, table_models
from specbench.decoding.protocols import Apprentice, Model
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Lesson
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.metrics import RoundCounts, Trace, acceptance
from specbench.models.network.causal import Causal
from specbench.models.network.learning import Learning, in_common
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, autoregressive, error
from tests.support.sources import replay_outcomes
from tests.support.streams import decode_stream
from tests.support.tiny import TOLERANCE, committed, network, plain_rows, worst
from tests.support.toys import CPU, Toy, number_of, random_pair

V = 12


def chain(model: Model, k: int = 2) -> Apprentice:
    return ModelDrafter(model, k)


def learning(p: Tensor, q: Tensor, drafter: Any = chain, every: int = 1) -> Speculate:
    return Speculate(Distilled(drafter(Toy(q)), 64, every), Toy(p), Rejection())


def own_model(method: Speculate) -> Any:
    """The model that has learned."""
    return method.drafter._own[0].model


# --- exact ------------------------------------------------------------------------------------------------------------


def test_the_shipped_method_is_proven_while_its_draft_changes_from_round_to_round() -> None:
    models = table_models("online", 0, 3)
    method, before = build("online", models, 2), models["draft"].table.clone()
    assert method_error("online", 3, 2, ()) <= EXACT
    assert sequence_error(method, models["target"].table, 3) <= EXACT
    assert (own_model(method).table - before).abs().max() > 0.1
    assert torch.equal(models["draft"].table, before), "the draft of other methods stays as it is"


def tree(model: Model) -> Apprentice:
    return Expand(model, 1, (2,), Independent())


def stream_law(method: Any, prompts: Sequence[Sequence[int]], new: int, vocab: int, rows: int) -> tuple[Tensor, int]:
    """The joint law of all texts of a stream, and how many different drafts there were when it had ended."""
    drafts = set()

    def run(source: Source) -> list[int]:
        made = method()
        if rows > 1:
            traces = decode_stream(made, prompts, rows=rows, new=new, eos=(), rng=source, device=CPU)
        else:
            traces = [decode(made, [one], new=new, eos=(), rng=source, device=CPU)[0] for one in prompts]
        drafts.add(tuple(own_model(made).table.flatten().tolist()))
        return [number_of([*prompt, *trace.tokens], vocab) for prompt, trace in zip(prompts, traces, strict=True)]

    outcomes = replay_outcomes(run)
    law = torch.zeros([vocab ** (len(prompt) + new + 1) for prompt in prompts], dtype=torch.float64)
    for numbers, weight in outcomes:
        law[tuple(numbers)] += weight
    return law, len(drafts)


def product_law(p: Tensor, prompts: Sequence[Sequence[int]], new: int) -> Tensor:
    vocab = p.shape[1]
    alone = []
    for prompt in prompts:
        law = torch.zeros(vocab ** (len(prompt) + new + 1), dtype=torch.float64)
        found = autoregressive(p, prompt, new)
        law[: len(found)] = found
        alone.append(law)
    return reduce(lambda a, b: a.unsqueeze(-1) * b, alone)


@pytest.mark.parametrize(
    "drafter", [lambda m: chain(m, 1), pytest.param(tree, marks=pytest.mark.slow)], ids=["chain", "tree"]
)
def test_texts_one_after_the_other_are_independent_though_each_changes_the_draft_of_the_next(drafter: Any) -> None:
    """The joint law of three texts: an update that depended on what is to be emitted would couple them."""
    (p, q), prompts = random_pair(0, 2, 4), ((0,), (1,), (0,))
    law, drafts = stream_law(lambda: learning(p, q, drafter), prompts, 2, 2, rows=1)
    assert error(law, product_law(p, prompts, 2)) <= EXACT
    assert drafts > 4


@pytest.mark.slow
def test_texts_side_by_side_are_independent_though_the_draft_changes_in_the_middle_of_some() -> None:
    (p, q), prompts = random_pair(0, 2, 5), ((0,), (1,), (0, 1))
    law, drafts = stream_law(lambda: learning(p, q, lambda m: chain(m, 1)), prompts, 2, 2, rows=2)
    assert error(law, product_law(p, prompts, 2)) <= EXACT
    assert drafts > 4


# --- real networks ----------------------------------------------------------------------------------------------------


def pair(temperature: float, rate: float = 0.02, **how: Any) -> Speculate:
    """A tiny target and another tiny network that learns from it."""
    law = Sampling(temperature)
    target = Causal(network("llama", V, seed=1), law, V)
    draft = Causal(network("llama", V, seed=2), law, V)
    return Speculate(
        Distilled(ModelDrafter(draft, 3), rate=rate, **{"rows": 512, "every": 2, **how}), target, Rejection()
    )


def prompts(count: int) -> list[list[int]]:
    draws = torch.randint(V, (count, 3), generator=torch.Generator().manual_seed(5))
    return [[int(token) for token in row] for row in draws]


def decoded(method: Speculate, texts: Sequence[Sequence[int]], new: int = 12) -> list[Trace]:
    """One text after the other, with a seed each."""
    found = []
    for seed, text in enumerate(texts):
        source = seeded([seed], CPU)
        found += decode(method, [text], new=new, eos=(), rng=source, device=CPU, clock=method.clock)
    return found


def weights(method: Speculate) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
    """Those of the draft, and those that it began with."""
    nets = own_model(method).network, network("llama", V, seed=2)
    return tuple(iter([one.detach() for one in net.parameters()]) for net in nets)  # type: ignore[return-value]


def alpha(traces: Sequence[Trace]) -> float:
    rounds: list[RoundCounts] = [one for trace in traces for one in trace.rounds]
    return acceptance(rounds).alpha


def test_greedy_texts_are_those_of_the_target_whatever_the_draft_has_become() -> None:
    method, texts = pair(0), prompts(8)
    baseline = Speculate(NoDraft(), method.model, Rejection())
    assert [one.tokens for one in decoded(method, texts)] == [one.tokens for one in decoded(baseline, texts)]
    assert max(worst(a, b) for a, b in zip(*weights(method), strict=True)) > 1e-2


def test_acceptance_rises_on_a_stream_of_one_kind_and_the_same_seeds_give_the_same() -> None:
    found = decoded(pair(1.0), prompts(18))
    assert decoded(pair(1.0), prompts(6)) == found[:6]
    assert alpha(found[-6:]) > alpha(found[:6]) + 0.1
    frozen = decoded(pair(1.0, every=100), prompts(18)[-6:])
    assert alpha(frozen) < alpha(found[-6:]) - 0.1


def test_forgetting_makes_it_the_drafter_of_the_first_text() -> None:
    method = pair(1.0)
    first = decoded(method, prompts(3), new=8)
    assert method.carries is not None
    method.carries.forget()
    assert decoded(method, prompts(3), new=8) == first


def test_rows_in_the_middle_of_a_text_are_drafted_for_by_the_new_weights_alone() -> None:
    """The caches of a text that goes on are filled anew: rows are those of a plain pass over all of it."""
    method = pair(1.0, every=1)
    context = begin([[1, 2, 3], [4, 5, 6, 7]], 20, method.drafter.room, [], CPU)
    method.start(context)
    for _ in range(3):
        method.advance(context, 3, seeded([0, 1], CPU))
    before = worst_row(method, context)
    context.live[0] = False
    method.ended(context, [0])
    assert max(before, worst_row(method, context)) <= TOLERANCE
    assert worst(*(next(one) for one in weights(method))) > 0


def worst_row(method: Speculate, context: Any) -> float:
    """How far the row of the draft after every text is from that of a pass without a cache."""
    model, texts = own_model(method), committed(context)
    rows = model.probs(context, TokenTree.chain(context.seq[:, :0]), refeed=1)[:, -1]
    plain = [plain_rows(model.network, Sampling(1.0), V, [text])[0, -1] for text in texts]
    return worst(rows, torch.stack(plain))


def test_an_update_is_a_phase_of_its_own_which_belongs_to_the_text_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    method, now = pair(1.0), [0.0]

    def teach(*rest: Any) -> str:
        now[0] += 7
        return ""

    monkeypatch.setattr(Learning, "teach", teach)
    timed = Speculate(method.drafter, method.model, method.verifier, clock=WallClock(lambda: now[0]))
    found = decoded(timed, prompts(4), new=6)
    assert [one.spans["update"] for one in found] == [0, 7, 0, 7]
    assert [one.seconds for one in found] == [0, 7, 0, 7], "it is a part of the time of the decode"
    baseline = Speculate(NoDraft(), method.model, Rejection(), clock=timed.clock)
    assert "update" not in decoded(baseline, prompts(1))[0].spans


@pytest.mark.parametrize("rate", [1e30, 1e300], ids=["wild logits", "no numbers"])
def test_an_update_that_breaks_the_draft_is_undone_and_said(rate: float) -> None:
    method = pair(1.0, rate)
    with torch.inference_mode():  # as in the eager tier
        decoded(method, prompts(2))
    (line,) = method.carries.remarks if method.carries else []
    assert line.startswith("an update of the draft was undone: ")
    assert "try a smaller rate" in line
    assert all(torch.equal(a, b) for a, b in zip(*weights(method), strict=True))


def test_a_draft_in_sixteen_bits_is_trained_in_thirty_two() -> None:
    net = network("llama", V, seed=2, dtype=torch.bfloat16)
    own, ids = Learning(net, 1.0, rate=1e-5), torch.tensor([1, 2, 3])
    p = torch.eye(V)[[4]]
    for _ in range(20):
        assert own.teach([Lesson(ids, torch.tensor([2]), p)], ForwardKL()) == ""
    assert own.served.dtype == torch.bfloat16
    moved = [worst(a.detach(), b.float()) for a, b in zip(own.trained.parameters(), net.parameters(), strict=True)]
    assert 0 < max(moved) < 1e-3, "steps that sixteen bits would lose add up"
    for served, trained in zip(own.served.parameters(), own.trained.parameters(), strict=True):
        assert torch.equal(served, trained.bfloat16())


def test_only_tokens_that_both_know_are_compared() -> None:
    p = torch.tensor([[0.25, 0.25, 0.5]])
    assert [part.tolist() for part in in_common(p, torch.zeros(1, 2))] == [[[0.25, 0.25]], [[0.0, 0.0]]]
    reduced = torch.tensor([[1.0, -torch.inf, 2.0, 3.0]])  # a vocabulary of the first and third token, a wider head
    assert [part.tolist() for part in in_common(p, reduced)] == [[[0.25, 0.5]], [[1.0, 2.0]]]


# --- what it learns from ----------------------------------------------------------------------------------------------


def test_the_target_s_row_is_kept_where_a_draft_was_rejected_and_nowhere_else() -> None:
    p = torch.zeros(3, 3, dtype=torch.float64)
    p[:, 1] = 1  # the target says 1 and nothing else
    p[:, 2] = 0.25
    p /= p.sum(1, keepdim=True)
    q = torch.eye(3, dtype=torch.float64)[[1, 1, 1]]  # the draft says 1, and is rejected where the target says 2
    method = learning(p, q, every=100)
    (trace,) = decode(method, [[0]], new=30, eos=(), rng=seeded([3], CPU), device=CPU)
    drafter = method.drafter
    assert isinstance(drafter, Distilled)
    (lesson,) = drafter._rejected.lessons(drafter._texts)
    assert lesson.ids.tolist() == [0, *trace.tokens]
    after = [int(place) + 1 for place in lesson.places]
    assert after == [place for place, token in enumerate(lesson.ids.tolist()) if token == 2][: len(after)]
    assert len(after) == sum(one.accepted < one.tested for one in trace.rounds) > 2
    assert torch.allclose(lesson.p, torch.tensor([[0, 0.8, 0.2]]), atol=1e-3)


def test_the_newest_rejections_are_kept_and_no_more_than_there_is_room_for() -> None:
    kept, texts = Rejections(3), {0: torch.tensor([7, 8]), 1: torch.tensor([9] * 9)}
    place = torch.arange(8)
    for one in pairwise(range(0, 9, 2)):
        rows = slice(*one)
        which = place[rows] != 4  # the fifth is none
        text = (place[rows] > 1).long()
        kept.add(which, text, place[rows], torch.eye(8)[rows])
    (lesson,) = kept.lessons(texts)
    assert sorted(lesson.places.tolist()) == [5, 6, 7]
    assert lesson.p.argmax(1).tolist() == lesson.places.tolist()
    kept.add(torch.ones(8, dtype=torch.bool), torch.ones(8).long(), place, torch.eye(8))  # more at once than it holds
    assert sorted(kept.lessons(texts)[0].places.tolist()) == [5, 6, 7]
    kept.clear()
    assert kept.lessons(texts) == []


# --- refused ----------------------------------------------------------------------------------------------------------


def test_quantised_weights_are_refused_in_one_line() -> None:
    net = torch.nn.Linear(2, 2)
    net.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UsageError, match="these are quantised: use another --draft"):
        Learning(net, 1.0, 1e-3)
