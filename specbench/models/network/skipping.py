"""A network without some of its attentions and MLPs, on the cache of the whole one (SWIFT, Xia et al. 2024).

It writes only to the slots of the last committed token and of drafts, which the whole network
overwrites when it judges; other keys are restored.
"""

import copy
import inspect
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from specbench.decoding.protocols import After, Cacheless, Model
from specbench.decoding.randomness import Source
from specbench.decoding.timing import NullClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UsageError
from specbench.metrics import ratio

# --- layers -----------------------------------------------------------------------------------------------------------
# Networks made of some layers of another one, with its weights: early exit and layer skipping. A name
# like `target[:25%]` or `target[0:4,12:]` lists layers of a network, and `target[:25%] shared` means that
# they share the whole network's cache. `draft vocabulary 25%` is a whole network with a reduced head.

NAME = re.compile(r"(?P<base>[^\[\]]+)\[(?P<layers>[^\[\]]+)\](?P<shared> shared)?")
CUT = re.compile(r"(?P<base>.+) vocabulary (?P<cut>\S+)")
PART = re.compile(r"(?P<first>\d+%?)?(?P<range>:)?(?P<last>\d+%?)?")
COLUMNS = ("experts", "experts_per_step", "experts_per_verify", "v_by_experts", "v_by_independence")
ENOUGH = 32  # tokens after which passes are known well enough: each has many layers
CHOSEN = "top_k_index"  # transformers' name for the experts [tokens, k] of a layer's tokens


def base_of(name: str) -> str:
    """The network in a name of layers or of a reduced head; otherwise the name itself."""
    found = CUT.fullmatch(name) or NAME.fullmatch(name)
    return found["base"] if found else name


def shares(name: str) -> bool:
    """Whether the layers in a name use the cache of the whole network."""
    found = NAME.fullmatch(name)
    return found is not None and found["shared"] is not None


def cut_of(name: str) -> str | None:
    """The vocabulary cut in a name, as written; None if it keeps all tokens."""
    found = CUT.fullmatch(name)
    return found["cut"] if found else None


def chosen(name: str, layers: int) -> list[int]:
    """The layers that a name keeps: ranges and numbers in rising order, or shares of the depth, rounded up.

    UsageError if the name has another form, keeps nothing, or names a layer that does not exist.
    """
    if cut_of(name) is not None:
        return list(range(layers))
    found = NAME.fullmatch(name)
    parts = [PART.fullmatch(part.strip()) for part in (found["layers"] if found else "").split(",")]
    kept: list[int] = []
    for part in parts:
        if part is None or not part[0]:
            raise UsageError(f"{name}: expected layers like [:4], [0:4,12:] or [:25%]")
        first = bound(part["first"], layers, 0)
        kept += range(first, bound(part["last"], layers, layers) if part["range"] else first + 1)
    if not kept or kept != sorted(set(kept)) or kept[-1] >= layers:
        raise UsageError(
            f"{name}: of {layers} layers, numbered from 0, it must keep some, in rising order and none twice"
        )
    if shares(name) and kept != list(range(min(len(kept), layers - 1))):
        raise UsageError(
            f"{name}: only the first layers of {layers} can share a cache with all of them, and not every one"
        )
    return kept


def bound(text: str | None, layers: int, otherwise: int) -> int:
    """A bound of a range: a number of layers, or a share of them."""
    if text is None:
        return otherwise
    return math.ceil(int(text[:-1]) * layers / 100) if text.endswith("%") else int(text)


def with_layers(network: Any, kept: Sequence[int], cached_from: int = 0) -> Any:
    """A network of the kept layers [list of indices] of `network`, its embedding, last norm and head, with its weights.

    `cached_from` is the number of its first layer in a cache, the others follow. All modules
    are copies, with their own caches and configurations; all tensors are the original's.
    """
    small = copy.deepcopy(network, shared_tensors(network))
    config = small.config.get_text_config(decoder=True)
    holder, name, layers = layers_of(small, config.num_hidden_layers)
    setattr(holder, name, nn.ModuleList(layers[index] for index in kept))
    for index, layer in enumerate(getattr(holder, name), cached_from):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index  # the cache layer of its keys and values
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in kept]
    return small


def shared_tensors(network: nn.Module) -> dict[int, Any]:
    """The memo for `copy.deepcopy` that copies modules and shares tensors."""
    return {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}


def layers_of(network: nn.Module, depth: int) -> tuple[nn.Module, str, nn.ModuleList]:
    """(module, name of its list, the list) of the decoder's layers. UsageError for a network without such a list."""
    for holder in network.modules():
        for name, child in holder.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == depth:
                return holder, name, child
    raise UsageError(f"{type(network).__name__} keeps its {depth} layers in no list: none of them can be left out")


@contextmanager
def hooked(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove some hooks of modules after the enclosed code."""
    hooks = list(hooks)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# --- skipping ---------------------------------------------------------------------------------------------------------

ATTENTION, MLP = ("self_attn", "attn", "attention"), ("mlp", "feed_forward")  # transformers' names


class Sublayer(nn.Module):
    """A sub-layer that adds nothing to the residual stream while it is `out`. `tells`: it returns more than states."""

    def __init__(self, inner: nn.Module, tells: bool) -> None:
        super().__init__()
        self.inner, self.tells, self.out = inner, tells, False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.out:
            return self.inner(*args, **kwargs)
        nothing = torch.zeros_like(args[0] if args else kwargs["hidden_states"])
        return (nothing, None) if self.tells else nothing


class Skipped(Cacheless):
    """See `decoding.drafters.swift.Skipping`; the sub-layers are attention and MLP of layer 1,
    of layer 2, and so on without the last layer. The judge fills the cache and moves accepted tokens."""

    static: ClassVar[bool] = False

    def __init__(self, whole: Any) -> None:  # a `Causal`, which knows this class
        self.whole, network = whole, with_layers(whole.network, range(whole.config.num_hidden_layers))
        self.sublayers = sublayers(network, whole.config.num_hidden_layers)
        self.model = type(whole)(network, whole.sampling, whole.width, whole.fixed)

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

    # It always feeds only the last committed token: the judge has fed those before it.

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        return self._model().sample(context, k, rng, 0, after)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self._model().probs(context, tree, 0)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        return self._model().expand(context, tree, new, 0, raw)

    def _model(self) -> Model:
        self.model.cache = self.whole.cache  # the current one
        found: Model = self.model
        return found


def sublayers(network: Any, depth: int) -> list[Sublayer]:
    """Add a switch to the attention and the MLP of every layer but the first and the last of a network, in place.

    UsageError for a network with unknown names of these.
    """
    _, _, layers = layers_of(network, depth)
    found = []
    for layer in layers[1:-1]:
        for names, tells in ((ATTENTION, True), (MLP, False)):
            name = next((name for name in names if isinstance(getattr(layer, name, None), nn.Module)), None)
            if name is None:
                raise UsageError(
                    f"{type(network).__name__} has layers whose attention and MLP cannot be identified ({names[0]}): "
                    "use --method layer-skip, which leaves out whole layers"
                )
            found.append(Sublayer(getattr(layer, name), tells))
            setattr(layer, name, found[-1])
    return found


# --- expert reads -----------------------------------------------------------------------------------------------------
# The reads of a mixture's passes: the distinct experts that their tokens chose, counted by hooks in an untimed decode.
# If memory decides the cost of a pass, this is v(K) before any kernel.


def touched(experts: int, chosen: int, tokens: float) -> float:
    """Expected distinct experts of a layer, E(1 − (1 − k/E)^w), if each of w tokens chose k of E
    uniformly and independently: neighbouring tokens of real texts choose alike, and use fewer."""
    return float(experts * (1 - (1 - chosen / experts) ** tokens))


def layers_with_experts(network: nn.Module) -> list[Any]:
    """The modules with a layer's experts, which receive the choice of every token."""
    return [m for m in network.modules() if CHOSEN in inspect.signature(type(m).forward).parameters]


@dataclass
class Count(NullClock):
    """A clock that counts the experts used by the passes at every verify lap.

    once: distinct experts of a step, of one token in each row; many: of a verify pass; independent: by `touched`.
    """

    network: Any
    layers: list[Any]
    rows: int
    _noted: list[Tensor] = field(default_factory=list, init=False)
    once: list[int] = field(default_factory=list, init=False)
    many: list[int] = field(default_factory=list, init=False)
    independent: list[float] = field(default_factory=list, init=False)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Hook the layers during the enclosed code; the clock must be that of the decode."""
        with hooked(layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in self.layers):
            yield

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._noted.append(kwargs[CHOSEN] if CHOSEN in kwargs else args[1])

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        for chosen in self._noted if phase == "verify" else ():
            by_row = chosen.reshape(self.rows, -1, chosen.shape[-1])
            self.once.append(len(torch.unique(by_row[:, :1])))
            self.many.append(len(torch.unique(by_row)))
            self.independent.append(touched(self.layers[0].num_experts, chosen.shape[-1], chosen.shape[0]))
        self._noted.clear()

    def row(self) -> dict[str, float]:
        """The means over all passes and layers as columns of results.csv; NaN without a pass."""
        once, many, independent = (ratio(sum(p), len(p)) for p in (self.once, self.many, self.independent))
        v, by_independence = (v_of(*self.bytes(), once, some) for some in (many, independent))
        return dict(zip(COLUMNS, (self.layers[0].num_experts, once, many, v, by_independence), strict=True))

    def bytes(self) -> tuple[float, float]:
        """The bytes of all weights that every pass reads, and of one expert in each of the layers
        with experts. Of an embedding that is not the head as well, a pass reads a few rows."""
        held = sum(map(weights, self.layers))
        embedding, head = self.network.get_input_embeddings(), self.network.get_output_embeddings()
        looked_up = 0 if head is None or head.weight is embedding.weight else weights(embedding)
        return weights(self.network) - held - looked_up, held / self.layers[0].num_experts


def v_of(dense: float, expert: float, once: float, many: float) -> float:
    """Bytes of a pass that uses `many` experts in every layer ÷ those of a step, which uses `once`."""
    return ratio(dense + many * expert, dense + once * expert)


def weights(module: nn.Module) -> int:
    """Bytes of the parameters of a module."""
    return sum(p.numel() * p.element_size() for p in module.parameters())
