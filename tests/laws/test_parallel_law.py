"""What a method with a head that drafts in one pass emits has the law of its target, whatever the head says."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.tree import Distinct, Expand, Independent, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.proofs.exact import block_error, sequence_error
from specbench.decoding.proofs.tables import nodes, tokens_of
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.randomness import seeded
from specbench.decoding.types import Context
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.heads.build import joined, through_masks
from specbench.models.heads.together import Drafted, Places, Together
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.parallel_heads import Made, made
from tests.support.tiers import as_it_is, compiled, seen, whole
from tests.support.tiny import CPU, TOLERANCE, network, plain_rows

K, V, PROMPT = 2, 3, (0, 1)
EACH = ("medusa", "pard", "p-eagle", "dflash", "dspark", "dspark with a state")  # a head of every kind
PLAIN, GREEDY, SAMPLED = Sampling(), Sampling(0), Sampling(1.0, top_p=0.9)
kinds = pytest.mark.parametrize("name", EACH)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: made(name, tmp_path_factory.mktemp("head"), V) for name in EACH}


@lru_cache
def table(law: Sampling, length: int) -> Tensor:
    """[N, V] the rows of the target after every text of at most so many tokens, by the number of the text."""
    texts = [tokens_of(number, V) for number in range(nodes(V, length))]
    rows = [torch.full((V,), 1 / V).double()]
    return torch.stack([*rows, *(plain_rows(network("llama", V), law, V, [text])[0, -1] for text in texts[1:])])


DRAFTERS: dict[str, Callable[[Model], Drafter]] = {
    "chain": lambda model: ModelDrafter(model, K),
    "independent tree": lambda model: Expand(model, K, [2], Independent()),
    "distinct tree": lambda model: Expand(model, K, [2], Distinct()),
    "top tree": lambda model: Expand(model, K, [2, 2], Top()),
    "dynamic tree": lambda model: Dynamic(model, K, 2, 4),
}


def method(head: Made, drafter: str, law: Sampling = PLAIN, verifier: Any = Rejection(), **options: Any) -> Speculate:  # noqa: B008
    target, draft = head.pair(law, K, **options)
    return Speculate(DRAFTERS[drafter](draft), target, verifier)


@kinds
@pytest.mark.parametrize(
    "law", [PLAIN, pytest.param(Sampling(0.7, top_k=2), marks=pytest.mark.slow)], ids=["plain", "warped"]
)
def test_a_chain_emits_the_law_of_its_target(name: str, law: Sampling, heads: dict[str, Made]) -> None:
    for verifier in (Rejection(), Block()) if name == "dspark with a state" else (Rejection(),):
        found = method(heads[name], "chain", law, verifier)
        assert sequence_error(found, table(law, 6), 4, PROMPT, eos=(2,)) <= TOLERANCE


@kinds
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if "tree" in name])
def test_a_tree_emits_the_law_of_its_target(name: str, drafter: str, heads: dict[str, Made]) -> None:
    assert block_error(method(heads[name], drafter), table(PLAIN, 5), K + 1, PROMPT) <= TOLERANCE


def test_a_head_that_says_another_law_than_it_draws_from_is_seen(
    heads: dict[str, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above would say of it."""
    rows = Together._rows
    monkeypatch.setattr(Together, "_rows", lambda self, context, logits: rows(self, context, logits).flip(-1))
    draws = Together.sample

    def sample(self: Together, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
        ids, said = draws(self, *args, **more)
        return ids, said.flip(-1)

    monkeypatch.setattr(Together, "sample", sample)
    assert sequence_error(method(heads["dflash"], "chain"), table(PLAIN, 6), 4, PROMPT) > 1e-3


# --- whole texts ------------------------------------------------------------------------------------------------------

TEXTS = ([4, 1], [3, 1, 2, 0, 4, 1, 2], [3], [0, 2, 2, 5])


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: made(name, tmp_path_factory.mktemp("head")) for name in EACH}


def real(head: Made, drafter: str, law: Sampling, fixed: bool = False) -> Speculate:
    """With the rows that the target leaves in its cache."""
    target = Causal(head.net, law, head.vocab, fixed)
    if head.kind == "pard":
        draft = through_masks(Causal(head.head.network, law, head.vocab, fixed), "draft", K)
        return Speculate(DRAFTERS[drafter](draft), target, Rejection())
    judge, drafts = joined(target, head.head, K)
    return Speculate(DRAFTERS[drafter](drafts), judge, Rejection())


def decoded(steps: Speculate, rounds: Any = None) -> Any:
    rng = seeded(range(len(TEXTS)), CPU)
    return decode(steps, TEXTS, new=23, eos=(6,), rng=rng, device=CPU, rounds=rounds)


@kinds
@pytest.mark.parametrize(
    "drafter", quick_or_slow(["chain", "top tree", "dynamic tree"], lambda name: name == "top tree")
)
def test_greedily_the_text_is_the_targets(name: str, drafter: str, larger: dict[str, Made]) -> None:
    head = larger[name]
    alone = Speculate(NoDraft(), Causal(head.net, GREEDY, head.vocab), Rejection())
    found = decoded(real(head, drafter, GREEDY))
    assert [trace.tokens for trace in found] == [trace.tokens for trace in decoded(alone)]
    assert len({done.accepted for trace in found for done in trace.rounds}) > 1, "all rounds went alike"
    assert len({len(trace.tokens) for trace in found}) > 1, "no end token was met"


@kinds
@pytest.mark.parametrize("ready", [as_it_is, pytest.param(compiled("eager"), marks=pytest.mark.slow)])
def test_a_round_as_one_call_gives_the_same_tokens(name: str, ready: Any, larger: dict[str, Made]) -> None:
    head = larger[name]
    rounds = whole(real(head, "chain", SAMPLED, fixed=True), ready, longest=9, new=23, rows=len(TEXTS), eos=(6,))
    plain = [seen(trace) for trace in decoded(real(head, "chain", SAMPLED))]
    assert [seen(trace) for trace in decoded(method(head, "chain", SAMPLED))] == plain
    assert [seen(trace) for trace in decoded(rounds.method, rounds)] == plain


# --- a perfect head ---------------------------------------------------------------------------------------------------


class Perfect:
    """A head without weights that knows the target's laws, along its greedy text: `shift` places further on."""

    taps: tuple[int | str, ...] = ()
    steps, behind, known, dtype = None, 0, None, torch.float64

    def __init__(self, net: Any, shift: int = 0) -> None:
        self.net, self.shift = net, shift
        self.config = PretrainedConfig(num_hidden_layers=0)

    def front(self, depth: int) -> int:
        return 0

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        return

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        found = []
        for row, end in enumerate(context.pos.tolist()):
            ids, logits = context.seq[row, : end + 1], []
            for _ in range(depth + self.shift):
                logits.append(self.net(input_ids=ids[None]).logits[0, -1])
                ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)])
            found.append(torch.stack(logits[self.shift :]))
        return Drafted(torch.stack(found), torch.stack(found)[..., :0])

    def corrected(self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None) -> tuple[Tensor, None]:
        return logits, None

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        return None


def share(drafter: Callable[[Model], Drafter], law: Sampling, shift: int, depth: int = K) -> float:
    """Accepted of tested tokens."""
    net = network("llama", 7)
    draft = Together(Perfect(net, shift), None, law, 7, depth)
    found = decoded(Speculate(drafter(draft), Causal(net, law, 7), Rejection()))
    rounds = [done for trace in found for done in trace.rounds]
    return sum(done.accepted for done in rounds) / sum(done.tested for done in rounds)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_all_that_a_perfect_head_drafts_is_accepted_and_less_where_it_is_off_by_one(drafter: str) -> None:
    assert share(DRAFTERS[drafter], GREEDY, 0) == 1
    assert share(DRAFTERS[drafter], GREEDY, 1) < 0.7


def test_what_it_draws_from_the_targets_own_row_is_accepted() -> None:
    assert share(lambda model: ModelDrafter(model, 1), PLAIN, 0, 1) == 1
    assert share(lambda model: ModelDrafter(model, 1), PLAIN, 1, 1) < 0.9
