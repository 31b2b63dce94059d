"""A network on a device of its own, and layers that lie on several. The other device is one without numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import LlamaForCausalLM

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Verdict
from specbench.models.network.caches import RowStaticLayer, Slots
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.checkpoints import llama

HERE, THERE = torch.device("cpu"), torch.device("meta")


Named = Mapping[str, Any]


class Landing(TorchFunctionMode):
    """Whatever is brought from the device without numbers to one that has some is zeros there."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Named | None = None
    ) -> Any:
        if function is Tensor.to and args[0].is_meta and args[1:] == (HERE,):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return function(*args, **(kwargs or {}))


def test_only_tokens_and_rows_leave_the_device_of_a_draft() -> None:
    with THERE:
        network = LlamaForCausalLM(llama()).eval()
    given = list[Tensor]()

    def look(module: Any, args: Any, named: Named) -> None:
        given.extend(one for one in named.values() if isinstance(one, Tensor))

    network.register_forward_pre_hook(look, with_kwargs=True)
    model, context = Causal(network, Sampling(temperature=1.0), 64), begin([[3, 1, 4, 1], [5, 9]], 8, 4, [], HERE)
    with Landing():
        model.start(context)
        ids, rows = model.sample(context, 3, seeded([0, 1], HERE))
        tree = TokenTree(ids, (-1, 0, 0))
        assert {ids.device, rows.device, model.probs(context, tree).device} == {HERE}
        path = torch.zeros((2, 2), dtype=torch.long)
        model.settle(context.pos, tree, Verdict(path, context.pos, context.pos, path))
        model.select(torch.tensor([1, 0]))
    assert len(given) == 5 * 3  # tokens, positions and mask of each pass
    assert {one.device for one in given} == {THERE}
    assert model.cache is not None
    assert {layer.device for layer in model.cache.rows} == {THERE}


@pytest.mark.parametrize("rows", [1, 2])
def test_a_layer_is_written_to_where_it_lies(rows: int) -> None:
    slots = Slots()
    slots.place(torch.zeros((rows, 3), dtype=torch.long), 8)
    for number, device in enumerate((HERE, THERE)):
        states = torch.zeros((rows, 1, 3, 4), device=device)
        keys, values = RowStaticLayer(8, slots, number).update(states, states)
        assert (keys.device, values.device) == (device, device)
    there = slots.on(THERE)
    assert (there.index.device, there.rows.device, there.reach) == (THERE, THERE, 8)
    assert slots.on(THERE) is there  # copied once per pass
    slots.place(torch.ones((rows, 3), dtype=torch.long), 8)
    assert slots.on(THERE) is not there
    assert slots.on(HERE) is slots
