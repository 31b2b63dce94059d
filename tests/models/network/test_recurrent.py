"""Networks with a recurrent state: after a rejection, and in any method of chains, they answer as the text alone does.

transformers computes their states in float32 whatever the dtype; here it computes them in float64, so that an error is
told apart from rounding.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.backends.networks import CHAINS
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import needs
from specbench.decoding.methods import build
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UnusableModelError, UsageError
from specbench.models.network import recurrent
from specbench.models.network.recurrent import REPLAYED, Recurrent, rollback_of
from specbench.models.network.sampling import Sampling
from tests.decoding.test_greedy import generated, random_prompts, with_noise
from tests.support.cases import quick_or_slow
from tests.support.families import RECURRENT
from tests.support.random_histories import HISTORIES, Chance, accept_and_append
from tests.support.sources import replay_outcomes
from tests.support.tiny import CPU, context_of, difference, network, oracle_law, tree_rows, worst

EXACT = 1e-9
SINGLE = ("mamba", "jamba")  # their scan begins at zero
families = pytest.mark.parametrize("name", quick_or_slow(RECURRENT, lambda name: name == "mamba"))


@pytest.fixture(autouse=True)
def _in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)


def model(name: str, law: Sampling = Sampling(), vocab: int = 5, seed: int = 0) -> Recurrent:  # noqa: B008
    return Recurrent(network(name, vocab, seed), law, vocab, stepwise=name in SINGLE)


def error(name: str, refeed: int, rounds: int = 6, k: int = 3) -> float:
    """Worst error of `sample` and `probs` while chains are drafted, and accepted at random."""
    vocab, found = 5, 0.0
    for history in HISTORIES:
        target, draft, chance = model(name), model(name), Chance(7)
        context = context_of([history], (k + 1 + refeed) * rounds, k)
        target.start(context)
        draft.start(context)
        rng = seeded([0], CPU)
        for number in range(rounds):
            ids, q = draft.sample(context, k, rng, refeed + 1)
            tree = TokenTree.chain(ids)
            p = target.probs(context, tree, refeed)
            expected = tree_rows(target.network, target.sampling, vocab, context, tree)
            found = max(found, worst(q, expected[:, :-1]), worst(p, expected))
            accept_and_append(target, context, tree, chance, number, refeed, vocab)
    return found


@families
def test_rows_do_not_depend_on_what_was_rejected(name: str) -> None:
    assert error(name, refeed=0, rounds=4) <= EXACT
    assert error(name, refeed=2, rounds=3) <= EXACT


@pytest.mark.mutant(test=test_rows_do_not_depend_on_what_was_rejected)
def test_a_state_that_is_not_put_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "copied", lambda state: {})
    assert error("mamba2", refeed=0, rounds=2) > 1e-3


@pytest.mark.mutant(test=test_rows_do_not_depend_on_what_was_rejected)
def test_a_pass_that_begins_at_zero_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.models.network.test_recurrent.SINGLE", ())
    assert error("mamba", refeed=0, rounds=2) > 1e-3


def law_error(name: str, k: int, new: int, eos: Sequence[int] = ()) -> float:
    """How far the distribution of `new` tokens, of two, is from that of the network: over all draws, run one by one."""
    net, prompt, law = network(name, 2), (0, 1, 1), Sampling()

    def run(source: Source) -> tuple[int, ...]:
        drafter = ModelDrafter(model(name, law, 2, seed=1), k)
        method = Speculate(drafter, model(name, law, 2), Rejection())
        return decode(method, [prompt], new=new, eos=eos, rng=source, device=CPU)[0].tokens

    found = Counter[tuple[int, ...]]()
    for tokens, weight in replay_outcomes(run):
        found[tokens] += weight
    return difference(found, oracle_law(net, law, 2, prompt, new, eos))


@pytest.mark.parametrize(
    ("name", "k", "new"), quick_or_slow([("mamba", 1, 2), ("mamba2", 1, 3), ("lfm2", 2, 3)], lambda *case: case[2] == 2)
)
def test_whole_sequences_are_distributed_as_those_of_the_network(name: str, k: int, new: int) -> None:
    assert law_error(name, k, new, eos=[1]) <= EXACT


def greedy(name: str, method: str) -> list[tuple[int, ...]]:
    """The texts of a method after a few prompts, each decoded alone."""
    net, law = network(name, 48), Sampling(0)
    models = {
        need: Recurrent(net if need == "target" else with_noise(net, 0.1), law, 48, name in SINGLE)
        for need in needs(method)
    }
    made = build(method, models, 3)
    each = [decode(made, [one], new=24, eos=(), rng=seeded([0], CPU), device=CPU)[0] for one in random_prompts(3)]
    assert method == "baseline" or any(r.accepted < r.drafted for trace in each for r in trace.rounds)
    return [trace.tokens for trace in each]


@families
def test_greedy_output_is_that_of_generate(name: str) -> None:
    assert greedy(name, "chain") == [generated(network(name, 48), prompt, 24) for prompt in random_prompts(3)]


@pytest.mark.slow
@pytest.mark.parametrize("method", CHAINS.split(", "))
def test_the_methods_that_refusals_name_work(method: str) -> None:
    assert greedy("mamba2", method) == [generated(network("mamba2", 48), prompt, 24) for prompt in random_prompts(3)]


class Watched(Recurrent):
    """Notes how wide its passes are."""

    widths: list[int]

    def _pass(self, tokens: list[int], keep: int) -> torch.Tensor:
        self.widths.append(len(tokens))
        return super()._pass(tokens, keep)


def widths(accepted: int, rounds: int, k: int = 3) -> list[int]:
    """The widths of the passes after the prompt's, where every round accepts so many tokens of k."""
    target, context = Watched(network("mamba2", 5), Sampling(), 5), context_of([[0, 1, 2]], 100, k)
    target.widths = []
    target.start(context)
    for _ in range(rounds):
        drafted = torch.tensor([[1, 2, 3]])
        target.probs(context, TokenTree.chain(drafted))
        commit(context, [*drafted[0, :accepted].tolist(), 4])
    return target.widths[1:]


def commit(context: Context, tokens: Sequence[int]) -> None:
    for token in tokens:
        context.pos += 1
        context.seq[0, context.pos] = token


def test_accepted_tokens_are_read_again_with_the_new_ones() -> None:
    assert widths(accepted=3, rounds=4) == [4, 4, 4, 4]  # nothing to take back
    assert widths(accepted=0, rounds=REPLAYED + 3) == [*range(4, 4 + REPLAYED + 1), REPLAYED + 1, 4, 5]
    target, context = model("mamba2"), context_of([[0, 1, 2, 3]], 20, 3)
    target.start(context)
    for _ in range(2):
        tree = TokenTree.chain(torch.tensor([[1, 2, 3]]))
        expected = tree_rows(target.network, target.sampling, 5, context, tree)
        assert worst(target.probs(context, tree), expected) <= EXACT
        context.seq[0, 1] = 4


def test_the_probe_finds_out_how_tokens_are_taken_back() -> None:
    found = {name: rollback_of(network(name, 5), name in RECURRENT, 5, name) for name in ("llama", *RECURRENT)}
    assert found == {"llama": "position"} | {n: "single" if n in SINGLE else "snapshot" for n in RECURRENT}
    with pytest.raises(UnusableModelError, match="neither positions nor its cache") as refusal:
        rollback_of(forgetful(network("llama", 5)), False, 5, "tiny")
    assert "\n" not in str(refusal.value)


def forgetful(net: Any) -> Any:
    """A network that sees its last token only when it goes on from a cache."""

    class Forgetful:
        config, device, dtype = net.config, net.device, net.dtype

        def __call__(self, **inputs: Any) -> Any:
            inputs.pop("past_key_values", None)
            return net(input_ids=inputs["input_ids"])

    return Forgetful()


@pytest.mark.parametrize("call", ["batch", "tree", "keys"])
def test_what_a_state_cannot_do_is_refused_by_name(call: str) -> None:
    target, context = model("mamba2"), context_of([[0, 1]], 8, 3)
    target.start(context)
    with pytest.raises(UsageError, match=r"Mamba2ForCausalLM .* recurrent state"):
        {
            "batch": lambda: target.start(context_of([[0, 1], [1]], 8, 3)),
            "tree": lambda: target.probs(context, TokenTree(torch.tensor([[1, 2]]), (-1, -1))),
            "keys": lambda: target.retrieved(8, 1, 4),
        }[call]()
