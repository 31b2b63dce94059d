"""In float32 and greedy, heads of every family say on trained targets what these say alone, token by token."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.checkpoints import loading, names
from specbench.models.checkpoints.description import load_tokenizer
from specbench.models.heads.build import built, joined, through_masks
from specbench.models.heads.files import read_head
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.training.new_heads import HeadOptions, beginning
from tests.support.heads import write_head
from tests.support.tiny import CPU

K, NEW, GREEDY = 3, 12, Sampling(0.0)
TEXTS = ("def largest(values):\n    best = values[0]\n    for value in", "The weather was")
SCALE = 0.05  # of random weights: states stay as large as a trained network's
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-1": ("eagle1", {}),
    "EAGLE-3": ("eagle3", {"aux": (1, 2)}),
    "EAGLE-3 of some tokens": ("eagle3", {"aux": (1, 2), "vocab": 500, "names": "speculators"}),
    "P-EAGLE": ("peagle", {"aux": (1, 2), "names": "speculators"}),
    "Medusa": ("medusa", {"heads": K}),
    "PARD": ("pard", {"scale": 0.4}),
    "DFlash": ("dflash", {"block": K + 1}),
    "DSpark": ("dspark", {"block": K}),
    "MTP": ("mtp", {"family": "speculators"}),
}
FEW = ("EAGLE-3", "Medusa", "DFlash")  # one of each kind; the others in the slow set
FRESH = ("eagle3", "medusa", "mtp")  # begun as a training begins: these are accepted now and then
TARGETS = ["demo", pytest.param("smollm2-135m", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Any:
    """(a network in float32, its texts as ids, what it says of them alone)."""
    name = str(request.param)
    if name != "demo":
        if "SPECBENCH_SMOLLM2" not in os.environ:
            pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
        name = str(Path(os.environ["SPECBENCH_SMOLLM2"], name))
    checkpoint = names.resolve(name)
    network = loading.load_model(checkpoint, torch.float32, CPU).model
    tokenizer = load_tokenizer(checkpoint)
    texts = [tokenizer.encode(text) for text in TEXTS]
    return network, texts, said(Speculate(NoDraft(), judge_of(network), Rejection()), texts)


def judge_of(network: Any) -> Causal:
    return Causal(network, GREEDY, network.config.vocab_size)


def said(method: Speculate, texts: list[list[int]]) -> list[list[int]]:
    """Texts of two lengths in one batch, so that their rounds differ."""
    found = decode(method, texts, new=NEW, eos=(), rng=seeded(range(len(texts)), CPU), device=CPU)
    return [list(trace.tokens) for trace in found]


def models(network: Any, kind: str, folder: Path) -> dict[str, Any]:
    """The target and the draft of a method, the latter from a folder of this kind."""
    if kind == "pard":
        draft = loading.load_model(names.resolve(str(folder)), torch.float32, CPU).model
        return {"target": judge_of(network), "draft": through_masks(judge_of(draft), "draft", K)}
    head = read_head(folder)
    assert head is not None
    return dict(zip(("target", "draft"), joined(judge_of(network), built(head, network), K), strict=True))


def spread(network: Any) -> dict[str, torch.Tensor]:
    """The tensors of a layer like the target's, with other values."""
    generator = torch.Generator().manual_seed(0)
    layer = network.get_decoder().layers[-1].state_dict()
    return {name: weight + SCALE * torch.randn(weight.shape, generator=generator) for name, weight in layer.items()}


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in HEADS]
)
def test_a_head_of_random_weights_changes_no_token(name: str, target: Any, tmp_path: Path) -> None:
    network, texts, alone = target
    kind, switches = HEADS[name]
    more = {"layer": spread(network)} if kind == "mtp" else {}
    folder = write_head(tmp_path, kind, network.config, **{"scale": SCALE, **switches, **more})
    assert said(build("chain", models(network, kind, folder), K), texts) == alone


@pytest.mark.parametrize("kind", FRESH)
def test_a_head_as_learning_begins_changes_no_token(kind: Any, target: Any) -> None:
    network, texts, alone = target
    student, _ = beginning(kind, network, HeadOptions(None, K, "target"))
    judge, draft = joined(judge_of(network), student.head, K)
    assert said(build("chain", {"target": judge, "draft": draft}, K), texts) == alone
