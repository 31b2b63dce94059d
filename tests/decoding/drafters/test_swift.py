"""SWIFT beside a plain pass in which some sub-layers add nothing from a place on; and what its search does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specbench.decoding import decode as decoding
from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.swift import Search, Swift
from specbench.decoding.drafters.tree import Expand, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.measure.proofs import difference, emitted, expected
from specbench.models.network import skipping
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import Skipped, Sublayer, layers_of, with_layers
from tests.laws.mutants import Patch, catches_patch, mutants
from tests.support.laws import EXACT
from tests.support.stateful_laws import history_error
from tests.support.streams import decode_stream
from tests.support.tiny import CPU, TOLERANCE, context_of, network, plain_rows, worst
from tests.support.toys import KINDS, Toy, random_pair

V, DEPTH, NEW, K = 12, 4, 20, 3
PROMPTS = [(1, 2, 3, 1, 2), (4,), (5, 5, 6, 7, 5, 8, 9, 5)]
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.0)
FEW: dict[str, Any] = {"window": 3, "every": 4, "enough": 1.0}  # no score is above 1, so that the search goes on


def net(name: str = "llama", vocab: int = V) -> Any:
    return network(name, vocab, layers=DEPTH)


def method(law: Sampling, name: str = "llama", tree: bool = False, **more: Any) -> Speculate:
    model = Causal(net(name), law, V)
    drafter = Expand(model, K, (2, 1), Top()) if tree else ModelDrafter(model, K)
    return Speculate(Swift(drafter, model, **{**FEW, **more}), model, Rejection())


def swift_of(made: Speculate) -> Swift:
    assert isinstance(made.drafter, Swift)
    return made.drafter


def searched(made: Speculate) -> Search:
    found = swift_of(made).search
    assert found is not None
    return found


# --- what is left of a network ----------------------------------------------------------------------------------------


@contextmanager
def without(whole: nn.Module, units: Sequence[int], place: int) -> Iterator[None]:
    """While it lasts these sub-layers of a network add nothing at the places from `place` on."""
    _, _, layers = layers_of(whole, DEPTH)
    hooks = []

    def cut(module: nn.Module, given: Any, out: Any) -> Any:
        states = (out if isinstance(out, Tensor) else out[0]).clone()
        states[:, place:] = 0
        return states if isinstance(out, Tensor) else (states, *out[1:])

    for unit in units:
        layer = layers[1 + unit // 2]
        names = skipping.MLP if unit % 2 else skipping.ATTENTION
        (part,) = (getattr(layer, name) for name in names if hasattr(layer, name))
        hooks.append(part.register_forward_hook(cut))
    yield
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "gemma2", "qwen3-moe"])
def test_drafts_are_those_of_a_plain_pass_without_the_sublayers(name: str) -> None:
    """Drafts after a text that the whole network has read are those of a pass that leaves out from there on."""
    whole = net(name)
    for units in ((0,), (1, 2), (0, 1, 2, 3), ()):
        judge, context = Causal(whole, SAMPLED, V), context_of([(1, 2, 3, 4, 5), (6, 7, 8, 9, 1)], K + 1, K)
        judge.start(context)
        left = judge.skipping()
        left.skip(units)
        ids, rows = left.sample(context, K, seeded([0, 1], CPU))
        texts = torch.cat([context.seq[:, :5], ids], 1)
        with without(whole, units, 4):
            right = plain_rows(whole, SAMPLED, V, texts.tolist())[:, 4 : 4 + K]
        assert worst(rows, right) <= TOLERANCE, units


def test_without_all_of_them_it_is_its_first_and_its_last_layer() -> None:
    whole, text = net(), torch.tensor([[1, 2, 3, 4]])
    left = Skipped(Causal(whole, SAMPLED, V))
    left.skip(range(left.units))
    assert left.units == 2 * (DEPTH - 2)
    assert torch.allclose(left.model.network(text).logits, with_layers(whole, [0, DEPTH - 1])(text).logits)


def test_the_cache_of_the_judge_stays_that_of_a_plain_pass() -> None:
    """Drafting and scoring write nothing that is read before the judge has written it."""
    made = method(SAMPLED)
    judge: Any = made.model
    context = begin(PROMPTS, NEW, made.drafter.room, (), CPU)
    for _ in decoding.steps(made, context, NEW, seeded(range(3), CPU)):
        fresh = Causal(net(), SAMPLED, V)
        fresh.start(replace(context, seq=context.seq.clone(), pos=context.pos.clone()))
        for row, end in enumerate(context.pos.tolist()):
            for ours, theirs in zip(judge.cache.rows, fresh.cache.rows, strict=True):  # type: ignore[union-attr]
                assert (ours.keys[row, :, :end] - theirs.keys[row, :, :end]).abs().max() <= TOLERANCE
                assert (ours.values[row, :, :end] - theirs.values[row, :, :end]).abs().max() <= TOLERANCE
    assert len(searched(made).scores) > 3


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
def test_greedy_text_is_the_targets_while_it_searches(name: str, tree: bool) -> None:
    made, model = method(GREEDY, name, tree), Causal(net(name), GREEDY, V)
    plain = Speculate(NoDraft(), model, Rejection())
    to: Any = {"new": NEW, "eos": (), "rng": seeded(range(3), CPU), "device": CPU}
    found, right = (decode(one, PROMPTS, **to) for one in (made, plain))
    stream = decode_stream(method(GREEDY, name, tree), PROMPTS, rows=2, **to | {"rng": seeded(range(2), CPU)})
    assert [trace.tokens for trace in found] == [trace.tokens for trace in right] == [trace.tokens for trace in stream]
    assert len(searched(made).scores) > 3
    assert len({counts.accepted for trace in found for counts in trace.rounds}) > 1


def test_the_law_of_what_a_network_emits_is_its_own_while_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place is enough for a score here, so that rounds draft with different sets."""
    used: set[frozenset[int]] = set()
    monkeypatch.setattr(Search, "note", lambda self, units, score: used.add(units) or the_latest(self, units, score))
    whole = net("neox", 2)
    model = Causal(whole, SAMPLED, 2)
    made = Speculate(Swift(ModelDrafter(model, 1), model, share=0.25, window=1, enough=1.0), model, Rejection())
    assert difference(emitted(made), expected(whole)) <= EXACT
    assert len(used) > 1


def test_the_law_over_tables_does_not_depend_on_the_search() -> None:
    for seed in range(len(KINDS)):
        p, _ = random_pair(seed, 3, 5)
        drafter = Swift(ModelDrafter(Toy(p), 2), Toy(p), share=0.5, window=1, enough=1.0)
        assert history_error(Speculate(drafter, Toy(p), Rejection()), p, 4) <= EXACT


# --- the search -------------------------------------------------------------------------------------------------------


def test_a_search_keeps_the_best_set_and_ends_as_it_says() -> None:
    """By hand: spread at first, then the best so far, whatever comes later; the end by each of the three numbers."""
    search = Search(10, 5, enough=0.9, patience=3, most=100, every=0)
    assert search.propose() == search.best == frozenset({1, 3, 5, 7, 9})
    search.note(search.best, 0.5)
    for score, best in ((0.4, 0.5), (0.6, 0.6), (0.6, 0.6), (0.1, 0.6)):
        one = search.propose()
        assert len(one) == 5
        search.note(one, score)
        assert search.score == best
        assert search.best == next(units for units, found in search.scores if found == best)
        assert not search.ended
    search.note(search.propose(), 0.2)
    assert search.ended, "three in a row that were no better"
    search.note(search.propose(), 0.91)
    assert search.ended, "good enough"
    assert not Search(10, 5, 0.9, 3, 100, 0).ended
    assert Search(0, 0, 0.9, 3, 100, 0).ended, "nothing to leave out"
    short = Search(10, 5, 0.9, 3, 1, 0)
    short.note(short.propose(), 0.1)
    assert short.ended, "as many as were asked for"


def test_the_model_of_the_scores_hopes_for_better_sets_than_chance() -> None:
    secret = frozenset(range(0, 20, 2))
    search, hoped, random = Search(20, 10, 1.0, 10**6, 10**6, every=5), [], []
    for number in range(120):
        one = search.propose()
        score = len(one & secret) / 10
        if number >= 40:
            (hoped if number % 5 == 0 else random).append(score)
        search.note(one, score)
    assert sum(hoped) / len(hoped) > sum(random) / len(random) + 0.1


def test_a_score_is_the_share_of_the_last_tokens_at_which_both_agree() -> None:
    """Every set's score is the share of the last tokens at which a plain pass without it agrees with the network."""
    made = method(SAMPLED)
    context, window, done = begin(PROMPTS, NEW, made.drafter.room, (), CPU), FEW["window"], 0
    starts = [len(prompt) for prompt in PROMPTS]
    for _ in decoding.steps(made, context, NEW, seeded(range(3), CPU)):
        scores = searched(made).scores
        if len(scores) == done or not context.live.all():
            done = len(scores)
            continue
        (units, score), done = scores[-1], len(scores)
        same = []
        for row, end in enumerate(context.pos.tolist()):
            first = max(end - window, 0)
            right = plain_rows(net(), SAMPLED, V, [context.seq[row, :end].tolist()])[0].argmax(-1)
            with without(net(), sorted(units), first):
                left = plain_rows(net(), SAMPLED, V, [context.seq[row, :end].tolist()])[0].argmax(-1)
            known = range(max(first, starts[row] - 1), end)  # of the prompt the whole network told nothing
            same += (left == right)[list(known)].tolist()
        assert score == pytest.approx(sum(same) / len(same))
    assert done > 3


def test_it_drafts_with_the_best_set_whatever_was_tried() -> None:
    made = method(SAMPLED)
    for _ in decoding.steps(made, begin(PROMPTS, NEW, made.drafter.room, (), CPU), NEW, seeded(range(3), CPU)):
        left: Any = swift_of(made)._own[1]
        assert {number for number, one in enumerate(left.sublayers) if one.out} == searched(made).best
    assert len({units for units, _ in searched(made).scores}) > 2


# --- pitfalls ---------------------------------------------------------------------------------------------------------


def test_the_time_of_the_search_is_in_the_measured_time() -> None:
    """A clock that ticks with every pass of any network: all passes of a decode lie in its time, and those that score
    in what a round takes after its draft is judged."""
    made, passes = method(SAMPLED), [0]
    judge: Any = made.model
    left: Any = swift_of(made)._own[1]
    for model in (judge, left.model):

        def counted(*args: Any, forward: Any = model._forward, **kwargs: Any) -> Tensor:
            passes[0] += 1
            return forward(*args, **kwargs)

        model._forward = counted
    clock = WallClock(lambda: float(passes[0]))
    timed = Speculate(made.drafter, made.model, made.verifier, clock=clock)
    (trace,) = decode(timed, PROMPTS[:1], new=NEW, eos=(), rng=seeded([0], CPU), device=CPU, clock=clock)
    tries = len(searched(made).scores)
    assert trace.seconds + trace.prefill_seconds == passes[0]
    assert trace.spans["accept"] == tries > 3


def check_prompts(**more: Any) -> tuple[list[Any], list[Any]]:
    """What the second prompt's search saw after the first one, and alone."""
    to: Any = {"new": NEW, "eos": (), "device": CPU}
    both, alone = method(SAMPLED, **more), method(SAMPLED, **more)
    decode(both, PROMPTS[:1], rng=seeded([0], CPU), **to)
    decode(both, PROMPTS[2:], rng=seeded([1], CPU), **to)
    decode(alone, PROMPTS[2:], rng=seeded([1], CPU), **to)
    return searched(both).scores, searched(alone).scores


def test_every_prompt_begins_its_own_search_unless_it_is_carried() -> None:
    after, alone = check_prompts()
    assert after == alone
    after, alone = check_prompts(carry=True)
    assert len(after) > len(alone)
    assert method(SAMPLED).carries is None
    carrying = method(SAMPLED, carry=True)
    assert carrying.carries is carrying.drafter
    decode(carrying, PROMPTS[:1], new=NEW, eos=(), rng=seeded([0], CPU), device=CPU)
    swift_of(carrying).forget()
    assert searched(carrying).scores == []


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_network_whose_sublayers_cannot_be_told_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="attention and MLP cannot be identified") as refused:
        Causal(net("opt"), SAMPLED, V).skipping()
    assert "\n" not in str(refused.value)


def test_a_network_of_two_layers_drafts_whole() -> None:
    model = Causal(network("llama", V), GREEDY, V)
    made = Speculate(Swift(ModelDrafter(model, K), model, window=1), model, Rejection())
    (trace,) = decode(made, PROMPTS[:1], new=NEW, eos=(), rng=seeded([0], CPU), device=CPU)
    assert all(counts.accepted == counts.tested for counts in trace.rounds)


def test_the_shipped_file_is_what_its_comment_says() -> None:
    model = Causal(net(), SAMPLED, V)
    made = build("swift", {"target": model}, 4)
    found = swift_of(made)
    assert (found.share, found.window, found.enough, found.patience, found.most, found.every, found.carry) == (
        *(0.45, 32, 0.95, 300, 1000, 25),
        False,
    )


# --- mutants ----------------------------------------------------------------------------------------------------------

SAMPLE, NOTE, PROPOSE, FORWARD = Skipped.sample, Swift._note, Search.note, Sublayer.forward


def feeds_two(self: Skipped, context: Context, k: int, rng: Any, refeed: int = 1, after: Any = None) -> Any:
    return self._model().sample(context, k, rng, 1, after)


def keeps_nothing(self: Skipped, context: Context, places: Tensor) -> Tensor:
    self._model()
    return self.model.along(context, places)[..., :V].argmax(-1)


def the_latest(self: Search, units: Any, score: float) -> None:
    PROPOSE(self, units, score)
    self.best, self.score = frozenset(units), score


def leaves_tried(self: Skipped, units: Any) -> None:
    """Says nothing when the best set is put back: as many calls are ignored as follow a score."""
    self.calls = getattr(self, "calls", 0) + 1  # type: ignore[attr-defined]
    if self.calls < 2 or self.calls % 2 == 0:  # type: ignore[attr-defined]
        for number, one in enumerate(self.sublayers):
            one.out = number in units


def mlps_stay(self: Sublayer, *args: Any, **kwargs: Any) -> Any:
    return FORWARD(self, *args, **kwargs) if self.tells else self.inner(*args, **kwargs)


def last_too(network: Any, depth: int) -> list[Sublayer]:
    _, _, layers = layers_of(network, depth)
    found = []
    for layer in layers[1:]:
        for name, tells in (("self_attn", True), ("mlp", False)):
            found.append(Sublayer(getattr(layer, name), tells))
            setattr(layer, name, found[-1])
    return found


CACHE = test_the_cache_of_the_judge_stays_that_of_a_plain_pass
ROWS = partial(test_drafts_are_those_of_a_plain_pass_without_the_sublayers, "llama")
SCORES = test_a_score_is_the_share_of_the_last_tokens_at_which_both_agree
ENDS = test_without_all_of_them_it_is_its_first_and_its_last_layer
PROMPT = test_every_prompt_begins_its_own_search_unless_it_is_carried
MUTANTS: dict[str, Patch] = {
    "drafts over an earlier token's keys": (Skipped, "sample", feeds_two, CACHE),
    "scores over the keys of the text": (Skipped, "guesses", keeps_nothing, CACHE),
    "MLPs are never left out": (Sublayer, "forward", mlps_stay, ROWS),
    "the last layer is left out": (skipping, "sublayers", last_too, ENDS),
    "scored one place late": (
        *(Swift, "_note", lambda self, start, p, verdict: NOTE(self, start + 1, p, verdict)),
        SCORES,
    ),
    "the latest set is the best": (Search, "note", the_latest, test_a_search_keeps_the_best_set_and_ends_as_it_says),
    "drafts with the set that was tried": (
        *(Skipped, "skip", leaves_tried),
        test_it_drafts_with_the_best_set_whatever_was_tried,
    ),
    "never begins anew": (Swift, "_begin", lambda self: self.search or BEGIN(self), PROMPT),
}
BEGIN = Swift._begin


@mutants(MUTANTS)
def test_a_wrong_search_is_found_out(mutant: Any) -> None:
    catches_patch(*mutant)


def test_a_tree_is_drafted_on_the_same_cache() -> None:
    """All nodes of a tree see the text as the judge has read it."""
    model = Causal(net(), SAMPLED, V)
    context = context_of([(1, 2, 3, 4)], 6, 6)
    model.start(context)
    left = model.skipping()
    left.skip(())
    tree = TokenTree(torch.tensor([[5, 6, 7]]), (-1, -1, 0))
    assert worst(left.probs(context, tree), model.probs(context, tree)) <= TOLERANCE
