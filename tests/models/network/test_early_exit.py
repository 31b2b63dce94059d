"""Networks of some layers of another: its function without the others, and early exit with one cache, to 1e-12."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.backends.native import open_pair
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.tree import Expand, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UnusableModelError, UsageError
from specbench.metrics import Trace, acceptance
from specbench.models.execution.compiled import Passes
from specbench.models.network.causal import Causal
from specbench.models.network.early_exit import Early, First, Resumed, Split, pair, sharing
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import base_of, chosen, layers_of, shares, with_layers
from specbench.spec import RunSpec
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.frontdoor import Command
from tests.support.random_histories import HISTORIES, RAGGED, Chance, accept_and_append
from tests.support.streams import decode_stream
from tests.support.tiers import as_it_is, compiled, seen, whole
from tests.support.tiny import (
    CPU,
    TOLERANCE,
    context_of,
    difference,
    enumerate_law,
    network,
    oracle_law,
    tree_rows,
    worst,
)

K, V, NEW = 3, 5, 23
PLAIN, GREEDY, SAMPLED = Sampling(), Sampling(0), Sampling(1.0, top_p=0.9)
NAME = "target[:1] shared"
architectures = pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))
refeeds = pytest.mark.parametrize("refeed", quick_or_slow([0, 1, 2], lambda refeed: refeed == 1))


def models(name: str, law: Sampling = PLAIN, vocab: int = V, fixed: bool = False) -> dict[str, Any]:
    """The tiny network and its first layer of two, which share a cache."""
    net = network(name, vocab)
    return sharing(
        {"target": Causal(net, law, vocab, fixed), NAME: Causal(with_layers(net, [0]), law, vocab, fixed)},
        {"target", NAME},
    )


def method(name: str, law: Sampling = PLAIN, vocab: int = V, k: int = K, fixed: bool = False) -> Speculate:
    both = models(name, law, vocab, fixed)
    return Speculate(ModelDrafter(both[NAME], k), both["target"], Rejection())


def chain_error(name: str, refeed: int = 0, k: int = K, rounds: int = 8) -> float:
    """Worst error of the rows of both parts while chains are accepted at random, every third one fully."""
    net, chance, found = network(name, V), Chance(7), 0.0
    both, small = models(name), with_layers(net, [0])
    judge, early = both["target"], both[NAME]
    context, rng = context_of(HISTORIES, (k + 1 + refeed) * rounds, k), seeded(range(len(HISTORIES)), CPU)
    judge.start(context)
    for number in range(rounds):
        ids, q = early.sample(context, k, rng, refeed + 1)
        tree = TokenTree.chain(ids)
        p = judge.probs(context, tree, refeed)
        found = max(found, worst(p, tree_rows(net, PLAIN, V, context, tree)))
        found = max(found, worst(q, tree_rows(small, PLAIN, V, context, tree)[:, :-1]))
        accept_and_append(judge, context, tree, chance, number, refeed, V)
    return found


@refeeds
@architectures
def test_both_parts_give_their_rows_whatever_was_rejected_before(name: str, refeed: int) -> None:
    assert chain_error(name, refeed) <= TOLERANCE


@pytest.mark.parametrize("k", [1, 2, 6])
def test_drafts_of_other_lengths_too(k: int) -> None:
    assert chain_error("llama", k=k) <= TOLERANCE


def widths_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Notes (part, tokens) of every pass of either part from now on."""
    passes: list[tuple[str, int]] = []

    def noted(part: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, hidden: Any) -> Any:
            passes.append((part, (hidden if isinstance(hidden, Tensor) else hidden[0]).shape[1]))
            return hook(self, hidden)

        return call

    monkeypatch.setattr(First, "hold", noted("first", First.hold))
    monkeypatch.setattr(Split, "given", noted("rest", Split.given))
    return passes


def test_verification_runs_the_first_layers_for_the_last_drafted_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, context = method("llama"), context_of([[1, 2, 3, 4]], 12, K)
    passes = widths_of(monkeypatch)
    steps.start(context)
    assert passes == [("first", 3), ("rest", 3)]  # the prompt goes through every layer once
    passes.clear()
    steps.advance(context, None, seeded([0], CPU))
    assert passes == [("first", 2), ("first", 1), ("first", 1), ("first", 1), ("rest", K + 1)]


def test_what_the_first_layers_did_not_draft_by_themselves_they_compute_again(monkeypatch: pytest.MonkeyPatch) -> None:
    both, context = models("llama"), context_of([[1, 2, 3, 4]], 12, K)
    judge, early = both["target"], both[NAME]
    judge.start(context)
    ids, _ = early.sample(context, K, seeded([0], CPU))
    other = TokenTree.chain(ids.clone())  # equal, but who knows
    early.probs(context, TokenTree.chain(ids[:, :1]))  # writes over what was drafted
    passes = widths_of(monkeypatch)
    for tree in (other, TokenTree.chain(ids), TokenTree.chain(ids[:, :0])):
        judge.probs(context, tree)
    assert passes == [("first", 4), ("rest", 4)] * 2 + [("first", 1), ("rest", 1)]


@pytest.mark.parametrize("again", ["probs", "expand", "a sample that fails", "a verification"])
def test_a_draft_is_taken_over_once_and_not_after_the_first_layers_started_anew(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their next pass writes over the states of the draft before it, so the very same tokens are computed again."""
    both, context = models("llama"), context_of([[1, 2, 3, 4]], 12, K)
    judge, early = both["target"], both[NAME]
    judge.start(context)
    drawn = TokenTree.chain(early.sample(context, K, seeded([0], CPU))[0])
    other = TokenTree.chain((drawn.ids + 1) % V)
    if again == "probs":
        early.probs(context, other)
    elif again == "expand":
        early.expand(context, other, K)
    elif again == "a verification":
        judge.probs(context, drawn)
    else:
        with pytest.raises(ZeroDivisionError):
            early.sample(context, K, seeded([1], CPU), after=lambda ids, logits: bool(1 / 0))
    passes = widths_of(monkeypatch)
    p = judge.probs(context, drawn)
    assert passes == [("first", K + 1), ("rest", K + 1)]
    assert worst(p, tree_rows(network("llama", V), PLAIN, V, context, drawn)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gemma3"])
def test_trees_and_drafts_inside_drafts_are_judged_as_ever(name: str) -> None:
    """Nodes beside each other, and a draft that a cascade inside has put together from several."""
    texts = []
    for shared in (False, True):
        net = network(name, V)
        made = {"target": Causal(net, GREEDY, V), NAME: Causal(with_layers(net, [0]), GREEDY, V)}
        both: dict[str, Any] = sharing(made, {"target", NAME}) if shared else made
        draft = Causal(network("llama", V, 1), GREEDY, V)
        inside = Speculate(ModelDrafter(draft, 2), both[NAME], Rejection(), K)
        around = Speculate(ModelDrafter(both[NAME], K), Causal(network("qwen3", V, 2), GREEDY, V), Rejection(), K)
        for drafter in (Expand(both[NAME], 3, [2, 2, 1], Top()), inside, around):
            texts += decoded(Speculate(drafter, both["target"], Rejection()), RAGGED_TEXTS, eos=())
    half = len(texts) // 2
    assert [seen(trace) for trace in texts[:half]] == [seen(trace) for trace in texts[half:]]


RAGGED_TEXTS = ([4], [3, 1, 2, 0, 4, 1, 2], [3, 1])


def decoded(
    steps: Speculate, prompts: Sequence[Sequence[int]], rounds: Any = None, eos: Sequence[int] = (2,), new: int = NEW
) -> list[Trace]:
    rng = seeded(range(len(prompts)), CPU)
    return decode(steps, prompts, new=new, eos=eos, rng=rng, device=CPU, rounds=rounds)


@pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "top-p"])
@architectures
def test_the_text_and_the_counts_are_those_of_two_caches(name: str, law: Sampling) -> None:
    net = network(name, V)
    apart = Speculate(ModelDrafter(Causal(with_layers(net, [0]), law, V), K), Causal(net, law, V), Rejection())
    found = decoded(method(name, law), RAGGED_TEXTS)
    assert [seen(t) for t in found] == [seen(t) for t in decoded(apart, RAGGED_TEXTS)]
    assert len({len(trace.tokens) for trace in found}) > 1 or law == GREEDY, "no end token was met"
    if law == GREEDY:
        alone = decoded(Speculate(NoDraft(), Causal(net, law, V), Rejection()), RAGGED_TEXTS)
        assert [t.tokens for t in found] == [t.tokens for t in alone]


def test_a_row_may_be_refilled() -> None:
    prompts = [[4, 1], [3, 1, 2, 0, 4], [3], [1, 1, 2]]
    options: dict[str, Any] = {"rows": 2, "new": 9, "eos": [], "device": CPU}
    found = decode_stream(method("llama", GREEDY), prompts, rng=seeded([0, 0], CPU), **options)
    alone = [decoded(method("llama", GREEDY), [prompt], eos=(), new=9)[0].tokens for prompt in prompts]
    assert [trace.tokens for trace in found] == alone


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma3"])
def test_the_law_of_whole_sequences_is_that_of_the_network(name: str) -> None:
    exact = enumerate_law(method(name, vocab=3, k=2), RAGGED[:2], 4, eos=[1])
    oracles = [oracle_law(network(name, 3), PLAIN, 3, prompt, 4, eos=[1]) for prompt in RAGGED[:2]]
    assert max(map(difference, exact.law, oracles)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("ready", [as_it_is, compiled("aot_eager")], ids=["whole", "compiled"])
def test_a_round_as_one_call_gives_the_same_tokens(ready: Any) -> None:
    rounds = whole(method("llama", SAMPLED, fixed=True), ready, longest=9, new=NEW, rows=3, eos=(2,))
    for texts in (RAGGED_TEXTS, RAGGED_TEXTS[::-1]):
        plain = [seen(trace) for trace in decoded(method("llama", SAMPLED), texts)]
        assert [seen(trace) for trace in decoded(rounds.method, texts, rounds)] == plain


# --- what is refused --------------------------------------------------------------------------------------------------


def test_only_the_first_layers_share_a_cache_and_not_all_of_them() -> None:
    assert chosen("target[:3] shared", 8) == chosen("target[:3]", 8)
    assert (shares("target[:3] shared"), shares("target[:3]"), shares("target")) == (True, False, False)
    for wrong in ("target[1:3] shared", "target[:8] shared", "target[:2,4] shared"):
        with pytest.raises(UsageError, match=r"only the first layers of 8 can share"):
            chosen(wrong, 8)


def test_where_sharing_is_no_use_models_stay_as_they_are_or_are_refused() -> None:
    net = network("llama", V)
    made = {"target": Causal(net, GREEDY, V), NAME: Causal(with_layers(net, [0]), GREEDY, V)}
    assert sharing(made, {"target"}) == made
    made = {name: Causal(network("llama", V), GREEDY, V) for name in ("target", "draft", "draft[:1] shared")}
    with pytest.raises(UsageError, match=r"does not judge with draft"):
        sharing(made, {"target", "draft[:1] shared"})
    net = network("llama", V)
    made = {name: Causal(net, GREEDY, V) for name in ("target", "target[:1] shared", "target[:50%] shared")}
    with pytest.raises(UsageError, match=r"one early exit"):
        sharing(made, set(made))
    made = {name: Causal(network("llama", V), GREEDY, V, passes=Passes(as_it_is)) for name in ("target", NAME)}
    with pytest.raises(UsageError, match=r"--tier eager"):
        sharing(made, set(made))


@pytest.mark.parametrize("fault", ["other numbers", "an error"])
def test_a_network_that_is_another_one_in_two_parts_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def given(self: Any, embedded: Tensor) -> Tensor:
        if fault == "an error":
            raise KeyError("layer 3")
        return embedded  # as a network would that does not let itself be fed

    monkeypatch.setattr(Split, "given", given)
    with pytest.raises(UnusableModelError, match=r"cannot be run in two parts: use --method early-exit") as refusal:
        models("llama")
    assert "\n" not in str(refusal.value)


def test_a_part_that_is_fed_too_little_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Split, "ahead", property(lambda self: True, lambda self, value: None), raising=False)
    monkeypatch.setattr("specbench.models.network.early_exit.check", lambda *args: None)
    assert chain_error("llama", refeed=1) > 1e-3


def test_the_shipped_method_and_a_loaded_pair_are_built_of_both_parts() -> None:
    both = {"target": models("llama")["target"]}
    judge, early = pair(Causal(network("llama", V), GREEDY, V), 1)
    built = build("early-exit-shared", {**both, "target": judge, "target[:25%] shared": early}, 2)
    assert isinstance(built.drafter, ModelDrafter)
    assert isinstance(built.model, Resumed)
    assert isinstance(built.drafter.model, Early)
    assert built.drafter.static
    shared, apart = RunSpec(method="early-exit-shared"), RunSpec(method="early-exit")
    backend = open_pair([shared, apart])
    backend.load()
    assert isinstance(backend.models(shared)["target"], Resumed)
    assert isinstance(backend.models(apart)["target"], Causal)


@pytest.mark.processor
def test_a_run_gives_the_text_of_the_target(run: Command) -> None:
    (row,) = run("--method", "early-exit-shared").table()
    assert (row["status"], row["lossless"]) == ("ok", "identical")


# --- layers left out --------------------------------------------------------------------------------------------------


WIDTH = 24
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


@torch.inference_mode()
def logits(net: Any) -> Tensor:
    return net(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("kept", [[0], [1]], ids=str)
@pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))
def test_what_is_left_out_is_the_identity(name: str, kept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = network(name, WIDTH)
    small = logits(with_layers(whole, kept))
    _, _, layers = layers_of(whole, 2)
    for index, layer in enumerate(layers):
        if index not in kept:

            def skip(hidden: Tensor, *rest: Any, forward: Any = layer.forward, **named: Any) -> Any:
                out = forward(hidden, *rest, **named)
                return hidden if isinstance(out, Tensor) else (hidden, *out[1:])

            monkeypatch.setattr(layer, "forward", skip)
    assert (logits(whole) - small).abs().max() < 1e-12


@pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))
def test_the_original_stays_as_it_is_and_lends_its_weights(name: str) -> None:
    whole = network(name, WIDTH)
    before, config = logits(whole), whole.config.to_dict()
    small = with_layers(whole, [1])
    assert torch.equal(logits(whole), before)
    assert whole.config.to_dict() == config
    assert small.config.num_hidden_layers == 1
    own = {weight.data_ptr() for weight in whole.parameters()}
    assert {weight.data_ptr() for weight in small.parameters()} < own
    assert torch.equal(logits(with_layers(whole, [0, 1])), before)


@pytest.mark.parametrize("law", [Sampling(0), Sampling(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_draft_has_a_cache_of_its_own(name: str, law: Sampling) -> None:
    """All layers: every draft is accepted. Some: the target's text all the same."""
    whole, found = network(name, WIDTH), []
    for kept in ([0, 1], [0], [1]):
        target, draft = Causal(whole, law, WIDTH), Causal(with_layers(whole, kept), law, WIDTH)
        method = Speculate(ModelDrafter(draft, 3), target, Rejection())
        found += decode(method, [[1, 2, 3, 4]], new=24, eos=(), rng=seeded([5], CPU), device=CPU)
    assert acceptance(found[0].rounds).alpha == pytest.approx(1, abs=1e-9)
    if law == Sampling(0):
        assert found[0].tokens == found[1].tokens == found[2].tokens
    else:
        assert all(acceptance(trace.rounds).alpha < 0.95 for trace in found[1:])


@pytest.mark.parametrize(
    ("name", "layers", "kept"),
    [
        ("target[:4]", 16, [0, 1, 2, 3]),
        ("target[:25%]", 16, [0, 1, 2, 3]),
        ("target[:25%]", 2, [0]),
        ("target[:25%, 75%:]", 8, [0, 1, 6, 7]),
        ("target[0:2,5,7:]", 9, [0, 1, 5, 7, 8]),
        ("target[:]", 3, [0, 1, 2]),
        ("target[:100%]", 3, [0, 1, 2]),
    ],
)
def test_names_say_which_layers(name: str, layers: int, kept: list[int]) -> None:
    assert chosen(name, layers) == kept
    assert base_of(name) == "target"
    assert base_of("draft") == "draft"


@pytest.mark.parametrize("name", ["target[:9]", "target[3,2]", "target[1,1]", "target[x]", "target[,]", "target[2:2]",
                                  "target[:120%]", "target[-1]", "target[1:2:3]"])  # fmt: skip
def test_a_name_that_keeps_nothing_that_is_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        chosen(name, 4)
    assert str(refusal.value).startswith(name)
    assert "\n" not in str(refusal.value)


def test_a_network_without_a_list_of_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="keeps its 3 layers in no list"):
        layers_of(network("llama", WIDTH), 3)


@pytest.mark.processor
@pytest.mark.parametrize("method", ["early-exit", "layer-skip"])
def test_a_run_needs_no_draft(run: Command, method: str) -> None:
    found = run("--method", method)
    (row,) = found.table()
    assert (row["status"], row["lossless"], row["method"]) == ("ok", "identical", method)
    assert "draft_source" not in row or row["draft_source"] == ""


def test_layers_that_do_not_exist_end_the_command_before_anything_is_loaded(run: Command, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from specbench.decoding.method_files import methods

    file = tmp_path / "deep.yaml"
    file.write_text(methods()["early-exit"].read_text().replace(":25%", ":99"))
    found = run("--method", file)
    assert (found.code, "of 2 layers" in found.line) == (2, True)
    assert not (found.cwd / "results").exists()
