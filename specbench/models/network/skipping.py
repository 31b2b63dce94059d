"""A network without some of its attentions and MLPs, on the cache of the whole one (SWIFT, Xia et al. 2024).

What it writes to that cache are the places of the last committed token and of drafts, which the whole network writes
anew when it judges: no earlier token is ever fed, or its keys are put back. Knows sub-layers and slots; must not know
which of them are worth leaving out.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specbench.decoding.protocols import After, Model
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.errors import UsageError
from specbench.models.network.layers import layers_of, with_layers

ATTENTION, MLP = ("self_attn", "attn", "attention"), ("mlp", "feed_forward")  # as transformers names them


class Sublayer(nn.Module):
    """A sub-layer that can be left out: then it adds nothing to the residual stream. `tells`: it returns more than
    states, as attentions do."""

    def __init__(self, inner: nn.Module, tells: bool) -> None:
        super().__init__()
        self.inner, self.tells, self.out = inner, tells, False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.out:
            return self.inner(*args, **kwargs)
        nothing = torch.zeros_like(args[0] if args else kwargs["hidden_states"])
        return (nothing, None) if self.tells else nothing


class Skipped:
    """See `specbench.decoding.skipping.Skipping`; the sub-layers are attention and MLP of layer 1, of layer 2, and so
    on without the last layer."""

    static: ClassVar[bool] = False

    def __init__(self, whole: Any) -> None:  # a `Causal`, which knows this class
        self.whole, network = whole, with_layers(whole.network, range(whole.config.num_hidden_layers))
        self.sublayers = sublayers(network, whole.config.num_hidden_layers)
        self.model = type(whole)(network, whole.law, whole.width, whole.fixed)

    @property
    def units(self) -> int:
        return len(self.sublayers)

    def skip(self, units: Collection[int]) -> None:
        for number, one in enumerate(self.sublayers):
            one.out = number in units

    @torch.no_grad()
    def guesses(self, context: Context, places: Tensor) -> Tensor:
        cache = self.model.cache = self.whole.cache
        assert cache is not None, "the judge takes in the prompts"
        kept = cache.copy(places)
        logits: Tensor = self.model.along(context, places)
        cache.put_back(places, kept)
        return logits[..., : self.whole.width].argmax(-1)

    def start(self, context: Context) -> None:
        return  # the judge takes in the prompts, with all sub-layers

    def admit(self, context: Context, row: int) -> None:
        return

    # Whatever is said to be new to it, it feeds the last committed token alone: the judge has fed those before it.

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._model().sample(context, k, rng, 0, after)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self._model().probs(context, tree, 0)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        return self._model().expand(context, tree, new, 0, raw)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return  # the judge moves what was accepted

    def select(self, rows: Tensor) -> None:
        return

    def _model(self) -> Model:
        """The model on the cache of today."""
        self.model.cache = self.whole.cache
        found: Model = self.model
        return found


def sublayers(network: Any, depth: int) -> list[Sublayer]:
    """Put a switch around the attention and the MLP of every layer but the first and the last of a network, in place.

    UsageError for a network whose layers have them under names that nobody knows.
    """
    _, _, layers = layers_of(network, depth)
    found = []
    for layer in layers[1:-1]:
        for names, tells in ((ATTENTION, True), (MLP, False)):
            name = next((name for name in names if isinstance(getattr(layer, name, None), nn.Module)), None)
            if name is None:
                raise UsageError(
                    f"{type(network).__name__} has layers whose attention and MLP cannot be told ({names[0]}): take "
                    "--method layer-skip, which leaves out whole layers"
                )
            found.append(Sublayer(getattr(layer, name), tells))
            setattr(layer, name, found[-1])
    return found
