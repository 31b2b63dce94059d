"""A cached model gives the rows of a plain forward, and a whole decode has the law of autoregression: to 1e-12."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Confidence, Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.protocols import After, Verifier
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.decoding.test_greedy import generated, random_prompts, with_noise
from tests.decoding.test_greedy import run as greedy
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.random_histories import HISTORIES, RAGGED, Chance, accept_and_append
from tests.support.tiers import compiled, graphs, pair, seen, whole
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

K = 2
PROMPT = (0, 1, 2)
PLAIN = Sampling()
verifiers = pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["chain", "token-match"])
refeeds = pytest.mark.parametrize("refeed", [0, 2])
architectures = pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))


def chain_error(
    net: Any,
    refeed: int = 0,
    model: type[Causal] = Causal,
    k: int = 3,
    rounds: int = 6,
    after: After | None = None,
) -> float:
    """Worst error of `sample` and of `probs` while chains are drafted and accepted at random; every third one fully."""
    law, vocab, chance, error = Sampling(), net.config.vocab_size, Chance(7), 0.0
    target, draft = model(net, law, vocab), model(net, law, vocab)
    context = context_of(HISTORIES, (k + 1 + refeed) * rounds, k)
    target.start(context)
    draft.start(context)
    rng = seeded(range(context.rows), CPU)
    for number in range(rounds):
        ids, q = draft.sample(context, k, rng, refeed + 1, after)
        tree = TokenTree.chain(ids)
        p = target.probs(context, tree, refeed)
        expected = tree_rows(net, law, vocab, context, tree)
        error = max(error, worst(q, expected[:, :-1]), worst(p, expected))
        accept_and_append(target, context, tree, chance, number, refeed, vocab)
    return error


def tree_error(net: Any, refeed: int = 0, model: type[Causal] = Causal, rounds: int = 5) -> float:
    """Worst error of `probs` over random trees, of which random paths are accepted and settled."""
    law, vocab, chance, error = Sampling(), net.config.vocab_size, Chance(11), 0.0
    target = model(net, law, vocab)
    context = context_of(HISTORIES, (4 + refeed) * rounds, 7)
    target.start(context)
    for number in range(rounds):
        tree = chance.tree(context.rows, vocab)
        p = target.probs(context, tree, refeed)
        error = max(error, worst(p, tree_rows(net, law, vocab, context, tree)))
        accept_and_append(target, context, tree, chance, number, refeed, vocab)
    return error


@refeeds
@architectures
def test_rows_along_chains_do_not_depend_on_what_was_rolled_back(name: str, refeed: int) -> None:
    assert chain_error(network(name, vocab=5), refeed) <= TOLERANCE


def test_a_draft_that_stops_early_keeps_its_cache_right() -> None:
    """Whether one to three tokens were drawn; what it is told of each token is its logits."""
    net, chance, widths = network("llama", vocab=5), Chance(3), Counter[int]()

    def after(ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
        assert logits.shape == (len(HISTORIES), 5)
        assert ids.shape == (len(HISTORIES),)
        stop = int(chance.below(2)) == 0
        widths[int(stop)] += 1
        return stop

    for refeed in (0, 1, 2):
        assert chain_error(net, refeed, rounds=12, after=after) <= TOLERANCE
    assert min(widths[0], widths[1]) > 5


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize("pair", [("llama", "gpt2"), ("mistral", "gemma3")], ids=" drafted by ".join)
def test_a_draft_that_stops_where_it_is_unsure_leaves_the_law_alone(pair: tuple[str, str], verifier: Verifier) -> None:
    for threshold in (0.2, 0.4, 0.6):
        unsure = Confidence(threshold)
        error = law_error(*pair, verifier, K + 2, eos=[1], prompts=RAGGED[:2], together=True, schedule=unsure)
        assert error <= TOLERANCE, threshold


@refeeds
@architectures
def test_rows_of_trees_are_those_of_every_path_alone_before_and_after_settling(name: str, refeed: int) -> None:
    assert tree_error(network(name, vocab=5), refeed) <= TOLERANCE


def law_error(
    target: str,
    draft: str,
    verifier: Verifier,
    new: int,
    eos: Sequence[int] = (),
    prompts: Sequence[Sequence[int]] = (PROMPT,),
    law: Sampling = PLAIN,
    draft_law: Sampling | None = None,
    draft_vocab: int = 3,
    together: bool = False,
    model: type[Causal] = Causal,
    schedule: Schedule | None = None,
) -> float:
    """How far the law of `new` tokens from a real pair with 3 tokens is from that of its target without a cache."""
    net = network(target)
    drafter = ModelDrafter(model(network(draft, draft_vocab, seed=1), draft_law or law, 3), K, schedule or Constant())
    # the draws of token match at every node make 243 outcomes a round
    short = isinstance(verifier, TokenMatch) and (together or new > K + 1)
    exact = enumerate_law(Speculate(drafter, model(net, law, 3), verifier), prompts, new, eos, together, short)
    oracles = [oracle_law(net, law, 3, prompt, new, eos) for prompt in prompts]
    assert sum(map(len, oracles)) > 1 or law.temperature == 0, "a law with one outcome proves nothing"
    return max(difference(found, oracle) for found, oracle in zip(exact.law, oracles, strict=True))


LENGTHS = [(name, new) for name in ARCHITECTURES for new in (1, K, K + 1, K + 2) if new == K + 1 or name in UNLIKE]


@verifiers
@pytest.mark.parametrize(("name", "new"), quick_or_slow(LENGTHS, lambda name, new: new == K + 1 and name in UNLIKE))
def test_every_architecture_emits_its_own_law(name: str, new: int, verifier: Verifier) -> None:
    assert law_error(name, name, verifier, new, eos=[2]) <= TOLERANCE


@verifiers
@architectures
def test_every_architecture_emits_its_warped_law(name: str, verifier: Verifier) -> None:
    assert law_error(name, "llama", verifier, K + 2, eos=[1], law=Sampling(3.0, top_k=2, top_p=0.9)) <= TOLERANCE


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize(
    "pair",
    [
        ("gpt2", "mistral"),
        ("gemma2", "opt"),
        ("neox", "qwen3"),
    ],
    ids=" drafted by ".join,
)
def test_the_draft_may_be_of_another_architecture(pair: tuple[str, str], verifier: Verifier) -> None:
    assert law_error(*pair, verifier, 5, eos=[0]) <= TOLERANCE


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize("new", [1, K, K + 1, K + 2, 2 * K + 1])
def test_the_limit_of_new_tokens_leaves_the_law_alone(new: int, verifier: Verifier) -> None:
    assert law_error("llama", "gpt2", verifier, new) <= TOLERANCE


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize("eos", [[0], [1], [0, 2], [0, 1, 2]], ids=str)
def test_the_end_token_ends_the_sequence_wherever_it_falls_in_a_round(eos: list[int], verifier: Verifier) -> None:
    assert law_error("llama", "gpt2", verifier, 5, eos) <= TOLERANCE


@verifiers
@pytest.mark.parametrize(
    "law",
    [
        Sampling(0.7),
        Sampling(top_k=2),
        Sampling(top_p=0.8),
        Sampling(0.7, top_k=2, top_p=0.8),
        Sampling(2.0, min_p=0.3),
        Sampling(eta=0.5),
        Sampling(0),
    ],
    ids=str,
)
def test_the_warped_law_is_emitted(law: Sampling, verifier: Verifier) -> None:
    assert law_error("llama", "gpt2", verifier, K + 2, eos=[1], law=law) <= TOLERANCE


@verifiers
def test_target_and_draft_may_be_warped_differently(verifier: Verifier) -> None:
    assert (
        law_error("qwen3", "llama", verifier, K + 2, law=Sampling(0.7, top_p=0.9), draft_law=Sampling(0)) <= TOLERANCE
    )
    assert law_error("qwen3", "llama", verifier, K + 2, law=Sampling(top_k=2), draft_law=Sampling(3.0)) <= TOLERANCE


@verifiers
@pytest.mark.parametrize("vocab", [2, 5], ids=["narrower", "wider"])
def test_the_head_of_the_draft_may_be_narrower_or_wider(vocab: int, verifier: Verifier) -> None:
    assert law_error("llama", "gpt2", verifier, K + 2, draft_vocab=vocab) <= TOLERANCE


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize("prompt", [(1,), (0, 1), (2, 0, 1, 1, 2, 0, 2)], ids=str)
def test_a_prompt_of_any_length_will_do(prompt: tuple[int, ...], verifier: Verifier) -> None:
    assert law_error("gpt2", "llama", verifier, K + 2, prompts=[prompt]) <= TOLERANCE


@pytest.mark.slow
@verifiers
@pytest.mark.parametrize("pair", [("llama", "gpt2"), ("mistral", "gemma3")], ids=" drafted by ".join)
@pytest.mark.parametrize("prompts", [RAGGED[:2], RAGGED], ids=["two rows", "three rows"])
def test_a_row_has_the_same_law_beside_others(
    prompts: tuple[tuple[int, ...], ...], pair: tuple[str, str], verifier: Verifier
) -> None:
    assert law_error(*pair, verifier, K + 2, eos=[1], prompts=prompts, together=True) <= TOLERANCE


@architectures
def test_the_baseline_has_the_law_of_its_network(name: str) -> None:
    net = network(name)
    exact = enumerate_law(Speculate(NoDraft(), Causal(net, PLAIN, 3), Rejection()), RAGGED, 4, eos=[2], together=True)
    oracles = [oracle_law(net, PLAIN, 3, prompt, 4, eos=[2]) for prompt in RAGGED]
    assert max(map(difference, exact.law, oracles)) <= TOLERANCE


@architectures
def test_every_architecture_emits_greedily_what_generate_does(name: str) -> None:
    net, prompts = network(name, vocab=48), random_prompts(3)
    traces = greedy(net, with_noise(net, 0.1), 3, Rejection(), prompts, 24)
    assert [trace.tokens for trace in traces] == [generated(net, prompt, 24) for prompt in prompts]
    assert len({r.accepted for trace in traces for r in trace.rounds}) > 1, "all rounds went alike"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral"])  # with experts, unlike those that other tests compile; all take minutes
def test_a_compiled_round_of_an_architecture_decodes_what_an_eager_one_does(name: str) -> None:
    eager, fixed = (build("chain", pair(name, Sampling(0.7), torch.float64, 24, fixed), K) for fixed in (False, True))
    rounds, before = whole(fixed, compiled("eager"), longest=9, new=20, rows=2), graphs()
    prompts = random_prompts(9)[3::5]
    fast, slow = (
        decode(method, prompts, new=20, eos=[], rng=seeded([1, 2], CPU), device=CPU, rounds=how)
        for method, how in ((fixed, rounds), (eager, None))
    )
    assert [seen(trace) for trace in fast] == [seen(trace) for trace in slow]
    assert graphs() == before
