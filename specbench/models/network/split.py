"""A network in two parts that meet in one cache: what leaves the first layers is kept there as one more layer.

Knows where a pass writes and what it may take up again; must not know why the first part has seen a token before.
"""

import copy
from typing import Any

from torch import Tensor, nn

from specbench.models.network.caches import RowStaticCache
from specbench.models.network.layers import layers_of, with_layers


class Held(nn.Module):
    """The last layer of the first part: it holds what leaves it until it is written to the cache."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.states: Tensor | None = None

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        out = self.layer(hidden, *args, **kwargs)
        self.states = out if isinstance(out, Tensor) else out[0]
        return out


class Given(nn.Module):
    """The first layer of the second part: what comes in is not what the embedding gives, but what it was given."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.states: Tensor | None = None

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(self.states, *args, **kwargs)


class First:
    """The first `depth` layers with the last norm and the head, as a network that leaves its states in the cache.

    The cache has one layer more than the whole network: number `depth` holds the states [B, 1, slots, H].
    """

    def __init__(self, network: Any, depth: int) -> None:
        self.network, self.depth = with_layers(network, range(depth)), depth
        self.config, self.dtype, self.device = self.network.config, network.dtype, network.device
        self.held = put_around(self.network, -1, Held)

    def __call__(self, *, past_key_values: RowStaticCache, **inputs: Any) -> Any:
        output = self.network(past_key_values=past_key_values, **inputs)
        self.write(past_key_values)
        return output

    def feed(self, cache: RowStaticCache, ids: Tensor, positions: Tensor, mask: Any) -> None:
        """A pass over ids [B, q] for their states alone, without the head."""
        self.network.base_model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        )
        self.write(cache)

    def write(self, cache: RowStaticCache) -> None:
        states = self.held.states.unsqueeze(1)
        cache.rows[self.depth].update(states, states[..., :0])
        self.held.states = None


class Split:
    """The whole network as two parts that meet in the cache: the states of some tokens may lie there already.

    `ahead`: whether the first part has had all tokens of the next pass but the last.
    """

    def __init__(self, network: Any, depth: int) -> None:
        self.config, self.ahead = copy.deepcopy(network.config), False
        self.dtype, self.device = network.dtype, network.device
        text = self.config.get_text_config(decoder=True)
        self.first = First(network, depth)
        self.rest = with_layers(network, range(depth, text.num_hidden_layers), cached_from=depth + 1)
        self.given = put_around(self.rest, 0, Given)
        text.num_hidden_layers += 1  # as the cache has it

    def __call__(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Any,
        past_key_values: RowStaticCache,
        **rest: Any,
    ) -> Any:
        slots = past_key_values.slots.index
        if self.ahead:
            past_key_values.slots.index = slots[:, -1:]
            self.first.feed(past_key_values, input_ids[:, -1:], position_ids[:, -1:], of_last(attention_mask))
            past_key_values.slots.index = slots
        else:
            self.first.feed(past_key_values, input_ids, position_ids, attention_mask)
        self.given.states = past_key_values.rows[self.first.depth].at(slots.expand(len(input_ids), -1))
        output = self.rest(
            input_ids=input_ids,  # what they embed is not used, but a network wants to know how many there are
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **rest,
        )
        self.given.states = None
        return output


def of_last(mask: Any) -> Any:
    """The mask of the last query, for one mask or for one per type of layer; of grouped queries it lies last, too."""
    return {name: one[:, :, -1:] for name, one in mask.items()} if isinstance(mask, dict) else mask[:, :, -1:]


def put_around(network: Any, index: int, wrapper: type[nn.Module]) -> Any:
    """Wrap a layer of a network that nobody else has; returns the wrapper."""
    _, _, layers = layers_of(network, network.config.get_text_config(decoder=True).num_hidden_layers)
    layers[index] = wrapper(layers[index])
    return layers[index]
