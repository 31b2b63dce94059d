"""The sizes of a network from its configuration: it is built without memory for its weights, and measured.

Knows configurations and module classes; must not know checkpoints' files or what a network is used for.
"""

from copy import copy
from heapq import nlargest
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig

from specbench.models.checkpoints import divided, quantise, quantised, reduced_heads
from specbench.models.checkpoints.files import attempt
from specbench.models.checkpoints.how import AS_STORED, How
from specbench.models.network.flexible import OURS
from specbench.models.network.passes import windows_of
from specbench.models.scale.grow import skeleton
from specbench.theory.memory import Network

READERS = 4  # threads of transformers that read weights at the same time


class KeptError(Exception):
    """Says how many numbers a layer hands to a cache for a token."""


class Watched(DynamicCache):
    """A cache that ends a pass of one token when it is first given something."""

    def update(self, key_states: Tensor, value_states: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        raise KeptError(sum(states.shape[1] * states.shape[3] for states in (key_states, value_states)))


def network_sizes(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, how: How = AS_STORED) -> Network:
    """What is needed to say how much memory the network of a configuration takes, loaded in this way."""
    text: Any = config.get_text_config(decoder=True)
    attention = how.attention_of(config)
    net = in_dtype(config, dtype, attention)
    ends = net.get_input_embeddings().weight, net.get_output_embeddings().weight
    shapes = [tensor.shape for tensor in net.parameters() if all(tensor is not end for end in ends)]
    heads = getattr(text, "num_attention_heads", 0)  # none where there is a recurrent state alone
    shared = getattr(text, "num_key_value_heads", None) or heads
    windows, ours = windows_of(text), attention in OURS
    return Network(
        weights=weight_bytes(net, config, device, how),
        read=host_bytes(net, device, how),
        layers=text.num_hidden_layers,
        kept=kept_by(net) // (how.parallel or 1),
        hidden=text.hidden_size,
        inner=max(max(shape[-2:]) for shape in shapes if len(shape) > 1),
        heads=heads,
        groups=heads // shared if ours and shared else 1,
        vocabulary=text.vocab_size,
        item=dtype.itemsize,
        scored=attention == "eager",
        masked=0 if ours and windows == {"": None} else len(windows),
    )


def kept_by(net: Any) -> int:
    """How many numbers a layer of a network on the device meta keeps of a token: what its first one hands to a cache,
    as latent attention keeps fewer than its heads have; by the number of these where that cannot be seen."""
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    try:
        net(input_ids=ids, position_ids=ids, past_key_values=Watched(), use_cache=True)
    except KeptError as found:
        return int(found.args[0])
    except Exception:  # whatever a network does with a recurrent state, or without weights
        pass
    text = net.config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", 0)  # none where there is a recurrent state alone
    shared = getattr(text, "num_key_value_heads", None) or heads
    return int(2 * shared * (getattr(text, "head_dim", None) or text.hidden_size // max(heads, 1)))


def in_dtype(config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    """The network in a dtype, on the device meta. UnusableModelError where its configuration contradicts itself."""
    wanted = copy(config)
    wanted.dtype = dtype
    unusable = f"unusable {config.name_or_path}/config.json: it describes no network"
    return attempt(unusable, lambda: reduced_heads.hollow(skeleton(wanted, attention), config))


def weight_bytes(net: Any, config: PreTrainedConfig, device: torch.device, how: How) -> int:
    """The weights as they lie on the device; a CPU holds them whole before it quantises them."""
    if how.quantize and device.type != "cpu":
        return quantise.bytes_of(net, how.quantize)
    if how.device_map is not None:
        return min(quantise.bytes_of(net), divided.limits(how.device_map, device).get(divided.place(device), 0))
    if how.parallel is not None:  # embedding and head are counted whole: not every plan splits them
        ends = {id(end): end for end in (net.get_input_embeddings().weight, net.get_output_embeddings().weight)}
        table = sum(end.numel() * end.element_size() for end in ends.values())
        return int(table + (quantise.bytes_of(net) - table) // how.parallel)
    whole, bits = quantise.bytes_of(net), quantised.settings(config).get("bits")
    if not bits or quantised.label(config, device).endswith("dequantised"):
        return whole
    packed = quantise.linear_layers(net).values()
    return whole - int(sum(layer.weight.numel() * (layer.weight.element_size() - int(bits) / 8) for layer in packed))


def host_bytes(net: Any, device: torch.device, how: How) -> int:
    """What the host holds while weights are read for another device: few of them, or all where it quantises them."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in net.parameters()]
    return sum(sizes if how.quantize and device.type != "cpu" else nlargest(READERS, sizes))
