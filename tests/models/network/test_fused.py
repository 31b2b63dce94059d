"""Decoder layers in fewer calls, against those of transformers in the same network."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.models.network.attention import NAME
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.fused import Attention, Layer, Mlp, Norm, fuse
from specbench.models.network.packed import twins
from specbench.models.network.skipping import shared_tensors, with_layers
from tests.support.families import CONFIGS
from tests.support.meta import is_view
from tests.support.tiny import network

V = 13
FORMS = (Norm, Attention, Mlp, Layer)
EXACT = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1}
WHOLE = {"llama", "mistral", "qwen2", "qwen3"}  # families all of whose layers have the common form


def own(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A network as transformers makes it; in float64 its norms do not round to float32, as in all exact tests."""
    net = copy.deepcopy(network(family, V)).to(dtype).requires_grad_(False)
    for part in net.modules() if dtype != torch.float64 else ():
        vars(part).pop("forward", None)
    return net


def logits(built: Any, rows: int = 2) -> Tensor:
    """Of eleven tokens fed at once and three after them, in rows of different lengths."""
    cache = RowStaticCache(built.config.num_hidden_layers, 16)
    ids = torch.randint(V, (rows, 14), generator=torch.Generator().manual_seed(0))
    found = []
    for begin, end in ((0, 11), (11, 14)):
        slots = torch.arange(begin, end).expand(rows, -1)
        cache.slots.place(slots, end)
        hidden = torch.arange(end) > slots[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=built.dtype).masked_fill(hidden, torch.finfo(built.dtype).min)
        found.append(
            built(input_ids=ids[:, begin:end], position_ids=slots, attention_mask=mask, past_key_values=cache).logits
        )
    return torch.cat(found, 1)


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many operators compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels += not is_view(func)
        return func(*args, **(kwargs or {}))


def kernels(built: Any) -> int:
    with Counted() as counted:
        logits(built)
    found: int = counted.kernels
    return found


def forms(built: Any) -> set[type]:
    return {form for part in built.modules() for form in FORMS if isinstance(part, form)}


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_stay_the_same(family: str, dtype: torch.dtype) -> None:
    net = own(family, dtype)
    expected = logits(net)
    twin = copy.deepcopy(net, shared_tensors(net))
    fuse(twin)
    found = logits(twin)
    assert float((found - expected).abs().max()) <= EXACT[dtype] * max(1.0, float(expected.abs().max()))
    assert not forms(net), "the network itself stays as it is"
    assert [type(part).__name__ for part in twin.modules()] == [type(part).__name__ for part in net.modules()]


@pytest.mark.parametrize("family", sorted(WHOLE))
def test_the_common_form_is_found(family: str) -> None:
    net = own(family)
    fuse(net)
    assert forms(net) == set(FORMS)


@pytest.mark.parametrize(
    ("family", "missing"), [("gemma2", (Norm, Attention, Layer)), ("gpt2", FORMS), ("smollm3", (Attention,))]
)
def test_other_forms_stay_as_they_are(family: str, missing: tuple[type, ...]) -> None:
    net = own(family)
    fuse(net)
    assert not forms(net) & set(missing)


def test_norms_in_float64_and_parts_with_another_function_or_attention_stay_as_they_are() -> None:
    net = own("llama").double()
    fuse(net)
    assert forms(net) == {Attention, Mlp, Layer}
    net = own("llama")
    net.model.norm.forward = torch.zeros_like
    fuse(net)
    assert not isinstance(net.model.norm, Norm)
    assert not logits(net).any()
    net = own("llama")
    net.set_attn_implementation("eager")
    fuse(net)
    assert Attention not in forms(net)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_pass_takes_fewer_operators(family: str) -> None:
    net = own(family)
    assert net.config._attn_implementation == NAME
    assert kernels(twins({"target": net})["target"]) < 0.75 * kernels(net)


def test_layers_of_a_fused_network_are_networks_as_well() -> None:
    net = own("llama")
    fused = twins({"target": net})["target"]
    assert forms(fused) == set(FORMS)
    assert (logits(fused) - logits(net)).abs().max() < 1e-5
    few, expected = (logits(with_layers(one, [1])) for one in (fused, net))
    assert (few - expected).abs().max() < 1e-5
