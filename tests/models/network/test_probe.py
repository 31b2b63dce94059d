"""How much rounding the probe of a network allows: in 16 bits as much as plain passes show."""

import copy
from typing import Any

import pytest
import torch

from specbench.errors import UnusableModelError
from specbench.models.network.recurrent import LOOSE, MOST, distance, model_of, noise, rollback_of
from specbench.models.network.sampling import Sampling
from tests.support.tiny import network

V = 32


def rounding(dtype: torch.dtype, size: float) -> Any:
    """A network whose logits depend on how many tokens it computes together, as those of a GPU's kernels do."""
    net = copy.deepcopy(network("llama", V, dtype=torch.float32)).to(dtype)
    apart = size * torch.linspace(-1, 1, V).to(dtype)

    def other_kernel(module: Any, inputs: Any, logits: Any) -> Any:
        return logits + apart if inputs[0].shape[1] < 6 else logits

    net.lm_head.register_forward_hook(other_kernel)
    return net


def test_kernels_that_differ_are_no_state_in_16_bits() -> None:
    net = rounding(torch.bfloat16, 0.5)
    assert noise(network("llama", V, dtype=torch.float32), V) < 1e-5
    assert LOOSE < noise(net, V) < MOST
    assert LOOSE < distance(model_of("position", net, Sampling(), V), "tiny") < MOST
    assert rollback_of(net, False, V, "tiny") == "position"


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 0.5), (torch.bfloat16, 50.0)], ids=str)
def test_more_than_rounding_is_refused(dtype: torch.dtype, size: float) -> None:
    with pytest.raises(UnusableModelError, match="keeps state that neither positions nor its cache describe"):
        rollback_of(rounding(dtype, size), False, V, "tiny")
