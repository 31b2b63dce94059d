"""Early exit with one cache (LayerSkip, Elhoushi et al. 2024, arXiv 2404.16710): the first layers of a network
draft; verification runs them for the last drafted token alone, and continues from their outputs for the others."""

import copy
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specbench.decoding.protocols import After, Cacheless, Forwarding, Model
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UnusableModelError, UsageError
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.causal import Causal
from specbench.models.network.recurrent import allowed, context_of
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import base_of, layers_of, shares, with_layers
from specbench.wording import first_line

TEXT, DRAFTED = (2, 3, 4, 5, 6), 3  # of the check: the committed tokens, and the number of tokens drafted after them
REFUSED = "this network cannot be run in two parts: use --method early-exit, whose draft has a cache of its own"


def sharing(models: Mapping[str, Any], named: Collection[str]) -> dict[str, Model]:
    """The models by name; those of the `named` ones that are marked so share a cache with the network they begin.

    UsageError if two would share one cache, if none fills it, or if passes are compiled
    separately. UnusableModelError for a network that gives other results in two parts.
    """
    found: dict[str, Model] = {**models}
    early = [name for name in models if name in named and shares(name)]
    if len({base_of(name) for name in early}) < len(early):
        raise UsageError(f"{' and '.join(early)}: a network can share its cache with one early exit")
    for name in early:
        if base_of(name) not in named:
            raise UsageError(f"{name}: the method does not judge with {base_of(name)}, whose cache it would share")
        whole, depth = models[base_of(name)], models[name].config.num_hidden_layers
        if whole.passes is not None:
            raise UsageError(f"{name}: drafts of varying length share a cache in --tier eager only")
        check(name, whole, depth)
        found[base_of(name)], found[name] = pair(whole, depth)
    return found


def pair(whole: Causal, depth: int) -> tuple["Resumed", "Early"]:
    """The model that judges and the one that drafts with its first `depth` layers; they replace `whole`."""
    judge = Resumed(whole, depth)
    return judge, Early(judge)


@torch.no_grad()
def check(name: str, whole: Causal, depth: int) -> None:
    """Raise UnusableModelError unless a draft, judged in two parts, gets the rows of one plain pass."""
    network, width = whole.network, whole.width
    device = next(network.parameters()).device
    judge, early = pair(Causal(network, Sampling(), width), depth)
    context = context_of(torch.tensor([TEXT], device=device) % width, DRAFTED)
    try:
        judge.start(context)
        ids, _ = early.sample(context, DRAFTED, seeded([0], device))
        found = judge.probs(context, TokenTree.chain(ids))
    except Exception as error:  # any error of code that does not support division
        raise UnusableModelError(f"{name}: {REFUSED} ({first_line(error)})") from error
    text = torch.cat([context.seq[:, : len(TEXT)], ids], 1)
    plain = Sampling()(network(input_ids=text).logits[:, len(TEXT) - 1 :], width)
    distance = float(((found - plain).abs().sum(-1) / 2).max())
    if plain.isfinite().all() and not allowed(distance, network, width):
        raise UnusableModelError(f"{name}: {REFUSED} (its distributions change by {distance:.2g}, total variation)")


class Resumed(Forwarding):
    """The whole network as the judge: for a chain just drafted by its first layers it computes
    only the rest, for every other tree all layers."""

    static: ClassVar[bool] = True

    def __init__(self, whole: Causal, depth: int) -> None:
        self.split = Split(whole.network, depth)
        self.model = Causal(self.split, whole.sampling, whole.width, whole.fixed, memory=whole.memory)
        self.drawn: Tensor | None = None  # the ids [B, n] last drawn by the first layers alone

    @property
    def reader(self) -> Causal:
        return self.model

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        # It is the same tensor that was drawn, so nothing else was drafted; a refeed means that
        # tokens were committed elsewhere.
        self.split.ahead = refeed == 0 and tree.size > 0 and tree.ids is self.drawn
        self.drawn = None
        try:
            return self.model.probs(context, tree, refeed)
        finally:
            self.split.ahead = False


class Early(Cacheless, Forwarding):
    """The first layers as a drafter, on the cache of the whole network, which the judge fills and moves."""

    static: ClassVar[bool] = True

    def __init__(self, judge: Resumed) -> None:
        self.judge, whole = judge, judge.model
        self.model = Causal(judge.split.first, whole.sampling, whole.width, whole.fixed)

    @property
    def reader(self) -> Causal:
        """The model on the current cache; earlier drafts may be overwritten."""
        self.model.cache, self.judge.drawn = self.judge.model.cache, None
        return self.model

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(context, k, rng, refeed, after)
        self.judge.drawn = ids
        return ids, rows


# --- split ------------------------------------------------------------------------------------------------------------
# Two parts of a network with a common cache: the first part's output is kept there as one more layer.


class First:
    """The first `depth` layers with the last norm and the head, as a network that writes its
    states to the cache: layer `depth` of the cache holds them [B, 1, slots, H]."""

    def __init__(self, network: Any, depth: int) -> None:
        self.network, self.depth = with_layers(network, range(depth)), depth
        self.config, self.dtype, self.device = self.network.config, network.dtype, network.device
        self.states: Tensor | None = None  # the output of the last layer, until it is written to the cache
        layer_of(self.network, -1).register_forward_hook(lambda layer, inputs, output: self.hold(output))

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

    def hold(self, output: Any) -> None:
        self.states = output if isinstance(output, Tensor) else output[0]

    def write(self, cache: RowStaticCache) -> None:
        assert self.states is not None, "the last layer was called"
        states = self.states.unsqueeze(1)
        cache.rows[self.depth].update(states, states[..., :0])
        self.states = None


class Split:
    """The whole network as two parts. `ahead`: whether the first part has been fed all tokens
    of the next pass but the last."""

    def __init__(self, network: Any, depth: int) -> None:
        self.config, self.ahead = copy.deepcopy(network.config), False
        self.dtype, self.device = network.dtype, network.device
        text = self.config.get_text_config(decoder=True)
        self.first = First(network, depth)
        self.rest = with_layers(network, range(depth, text.num_hidden_layers), cached_from=depth + 1)
        self.states: Tensor | None = None  # the input of its first layer, in place of embeddings
        layer_of(self.rest, 0).register_forward_pre_hook(lambda layer, inputs: (self.given(inputs[0]), *inputs[1:]))
        text.num_hidden_layers += 1  # the layer for states

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
        self.states = past_key_values.rows[self.first.depth].at(slots.expand(len(input_ids), -1))
        output = self.rest(
            input_ids=input_ids,  # their embeddings are not used, but a network needs their number
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **rest,
        )
        self.states = None
        return output

    def given(self, embedded: Tensor) -> Tensor | None:
        return self.states


def of_last(mask: Any) -> Any:
    """The mask of the last query, for one mask or for one per type of layer; it is last among grouped queries, too."""
    return {name: one[:, :, -1:] for name, one in mask.items()} if isinstance(mask, dict) else mask[:, :, -1:]


def layer_of(network: Any, index: int) -> nn.Module:
    _, _, layers = layers_of(network, network.config.get_text_config(decoder=True).num_hidden_layers)
    return layers[index]
