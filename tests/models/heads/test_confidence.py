"""DSpark's confidence head: how likely a token is accepted, said before it is drawn, so that no law changes by it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.schedule import Confidence
from specbench.decoding.loop import Speculate
from specbench.decoding.proofs.exact import sequence_error
from specbench.decoding.proofs.tables import nodes, tokens_of
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.heads.together import Together
from specbench.models.network.sampling import Sampling
from tests.support import parallel_oracle as oracle
from tests.support.cases import quick_or_slow
from tests.support.parallel_heads import Made, features, made
from tests.support.tiny import CPU, TOLERANCE, context_of, network, plain_rows, worst

V, PLAIN = 3, Sampling()
WITH_TOKEN = {"change": lambda tensors: tensors.update({"confidence_head.proj.weight": spread(16 + 4)})}
FORMS: dict[str, dict[str, Any]] = {"by the state": {}, "by the state and the token before": WITH_TOKEN}


def spread(width: int) -> Tensor:
    return torch.randn(1, width, generator=torch.Generator().manual_seed(2))


def head(folder: Path, form: str, vocab: int = 7) -> Made:
    return made("dspark of speculators", folder, vocab, **FORMS[form])


def chance(head: Made, text: list[int], path: list[int]) -> Tensor:
    """The head's own words for the token after a text and some drafted tokens, by the equation."""
    ids, w = torch.tensor(text), head.w
    told = features(head.net, ids[None, :-1], head.head.taps)[0]
    block = torch.cat([ids[-1:], torch.full((head.c["block_size"] - 1,), head.mask)])
    state = oracle.dflash(w, head.c, head.net.get_input_embeddings()(block), told, head.form)[len(path)]
    known = w["markov_head.markov_w1.weight"][[*text, *path][-1]]
    weight = w["confidence_head.proj.weight"][0]
    read = torch.cat([state, known]) if len(weight) > len(state) else state
    return torch.sigmoid(weight @ read + w["confidence_head.proj.bias"][0])


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_after_every_token_it_says_how_sure_it_is_of_the_next(form: str, tmp_path: Path) -> None:
    texts, k, heard = [[2, 0, 4], [0, 1, 2, 2, 3]], 3, list[Tensor | None]()
    one = head(tmp_path, form)
    context = context_of(texts, 8, k)
    model = one.model(PLAIN, context)
    model.start(context)

    def after(ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
        heard.append(sure)
        return False

    ids, _ = model.sample(context, k, seeded(range(2), CPU), after=after)
    assert heard.pop() is None  # after the last place there is none
    found = torch.stack([sure for sure in heard if sure is not None], 1)
    expected = [[chance(one, text, path[:n]) for n in (1, 2)] for text, path in zip(texts, ids.tolist(), strict=True)]
    assert worst(found, torch.tensor(expected)) < 1e-6  # it is said in float32
    assert found.std() > 0.01


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_what_it_says_is_kept_beside_the_token_that_it_is_of(form: str, tmp_path: Path) -> None:
    texts = [[2, 0, 4], [0, 1, 2, 2, 3]]
    one = head(tmp_path, form)
    context = context_of(texts, 8, 3)
    drafter = ModelDrafter(one.model(PLAIN, context), 3, Confidence(0.0))
    drafter.start(context)
    draft = drafter.propose(context, 3, seeded(range(2), CPU))
    assert draft.belief is not None
    assert draft.belief[:, 0].isnan().all(), "nothing is asked of the first"
    paths = draft.tree.ids.tolist()
    expected = [[chance(one, text, path[:n]) for n in (1, 2)] for text, path in zip(texts, paths, strict=True)]
    assert worst(draft.belief[:, 1:], torch.tensor(expected)) < 1e-6


def test_a_head_without_one_says_nothing(tmp_path: Path) -> None:
    one = made("dspark", tmp_path)
    context = context_of([[2, 0, 4]], 8, 3)
    model = one.model(PLAIN, context)
    model.start(context)
    heard: list[Tensor | None] = []
    model.sample(context, 3, seeded([0], CPU), after=lambda ids, logits, sure=None: bool(heard.append(sure)))
    assert heard == [None, None, None]


@pytest.mark.parametrize("form", quick_or_slow(FORMS, lambda form: form == next(iter(FORMS))))
def test_a_chain_that_it_ends_emits_the_law_of_its_target(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a threshold in the midst of what it says, so that rounds have one token or two by what was drawn first."""
    said: list[float] = []
    sure = Together._sure

    def listened(self: Together, *given: Any) -> Tensor | None:
        found = sure(self, *given)
        said.extend([] if found is None else found.tolist())
        return found

    monkeypatch.setattr(Together, "_sure", listened)
    one = head(tmp_path, form, V)
    rows = [torch.full((V,), 1 / V).double()]
    texts = [tokens_of(number, V) for number in range(nodes(V, 6))]
    rows += [plain_rows(network("llama", V), PLAIN, V, [text])[0, -1] for text in texts[1:]]
    for threshold in (0.0, 0.5):
        said.clear()
        target, draft = one.pair(PLAIN, 2)
        method = Speculate(ModelDrafter(draft, 2, Confidence(threshold)), target, Rejection())
        assert sequence_error(method, torch.stack(rows), 4, (0, 1), eos=(2,)) <= TOLERANCE
    assert min(said) < 0.5 < max(said)
