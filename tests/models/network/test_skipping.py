"""Networks of some layers of another: its function without the others, on its weights, with a cache of their own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.metrics import acceptance
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import base_of, chosen, layers_of, with_layers
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.frontdoor import Command
from tests.support.tiny import CPU, network

V = 24
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


@torch.inference_mode()
def logits(net: Any) -> Tensor:
    return net(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("kept", [[0], [1]], ids=str)
@pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))
def test_what_is_left_out_is_the_identity(name: str, kept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = network(name, V)
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
    whole = network(name, V)
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
    whole, found = network(name, V), []
    for kept in ([0, 1], [0], [1]):
        target, draft = Causal(whole, law, V), Causal(with_layers(whole, kept), law, V)
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
        layers_of(network("llama", V), 3)


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
