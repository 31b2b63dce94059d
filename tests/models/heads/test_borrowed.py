"""What a head borrows gives what the target itself makes of its last hidden state, however it scales and caps."""

import pytest
import torch

from specbench.models.heads.parts import Borrowed
from tests.support.families import ARCHITECTURES
from tests.support.tiny import network, worst


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_logits_of_the_last_hidden_state_are_those_of_the_target(name: str) -> None:
    net, ids = network(name, 7), torch.tensor([[1, 2, 3, 4]])
    seen: list[torch.Tensor] = []
    hook = net.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    expected = net(input_ids=ids).logits
    hook.remove()
    target = Borrowed(net)
    assert worst(target.logits(seen[0]), expected) < 1e-12
    assert target.embed(ids).shape == (1, 4, net.get_input_embeddings().weight.shape[1])
    assert (target.vocabulary, target.dtype, target.device.type) == (7, torch.float64, "cpu")
