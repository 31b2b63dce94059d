"""Drafts pruned from their target: some of its layers, and some of their width.

Layers are taken out of a network of any architecture; widths are pruned in Llama-like ones, by their
activations on texts. Pruned networks have their own memory, to be trained and saved unchanged.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from specbench.errors import UsageError
from specbench.models.network.skipping import hooked, layers_of
from specbench.training.start import rounded_up
from specbench.wording import first_line

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "smollm3")  # norms before sublayers, weights unchanged, no scales
READERS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "keys", "gate_proj": "channels", "up_proj": "channels"}
WRITERS = {"o_proj": "queries", "down_proj": "channels"}  # into the residual stream; the rows or columns that are cut
NORMS = {  # and the matrices after them
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "norm": ("lm_head",),
}
ENDS = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class Widths:
    """Sizes scaled with the hidden width; `head` (head_dim) stays."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int

    @staticmethod
    def of(config: Any) -> "Widths":
        hidden, heads = config.hidden_size, config.num_attention_heads
        head = getattr(config, "head_dim", None) or hidden // heads
        return Widths(hidden, config.intermediate_size, heads, config.num_key_value_heads, head)

    def cut(self, hidden: int) -> "Widths":
        """The same proportions at another width, rounded up; the number of heads must divide the width."""
        if hidden == self.hidden:
            return self
        share, group = hidden / self.hidden, self.heads // self.kv_heads
        possible = [
            (kv * members, kv)
            for kv in range(1, math.ceil(self.kv_heads * share) + 1)
            for members in range(1, group + 1)
            if hidden % (kv * members) == 0
        ]
        inner = min(self.intermediate, rounded_up(self.intermediate * share))
        return Widths(hidden, inner, *max(possible), self.head)


def unit(x: Tensor) -> Tensor:
    """x [..., H] as rows [n, H] of length √H: the output of a norm without weights."""
    return nn.functional.normalize(x.flatten(0, -2).double(), dim=-1) * math.sqrt(x.shape[-1])


def narrowed(network: Any, hidden: int, texts: Sequence[Sequence[int]]) -> tuple[Any, dict[str, Tensor]]:
    """Configuration and weights of the network at another width. UsageError for an unsupported one."""
    config = copy.deepcopy(network.config)
    refuse_unable(config, hidden)
    old, (gram, sizes) = Widths.of(config), observed(network, texts)
    new = old.cut(hidden)
    components: Tensor = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :hidden]  # in descending order
    shares = lengths(network, texts, components)
    gains = {name: share * math.sqrt(old.hidden / hidden) for name, share in shares.items()}
    precise = torch.promote_types(network.dtype, torch.float32)
    weights = without_norms({name: weight.to(precise) for name, weight in network.state_dict().items()})
    cuts = [Cut.of(layer, weights, sizes, old, new) for layer in range(config.num_hidden_layers)]
    made = {name: cut(name, weight, cuts, components.to(precise), gains) for name, weight in weights.items()}
    config.hidden_size, config.intermediate_size = new.hidden, new.intermediate
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = new.heads, new.kv_heads, new.head
    config.rms_norm_eps *= old.hidden / new.hidden  # it is added to a mean over fewer components
    config.tie_word_embeddings = False  # the weights of the last norm are in the head now
    return config, made


def refuse_unable(config: Any, hidden: int) -> None:
    if config.model_type not in LIKE_LLAMA:
        raise UsageError(
            f"only the width of {', '.join(LIKE_LLAMA)} can be cut, and this is {config.model_type}: keep its width "
            "and some of its layers, or start from a fresh draft"
        )
    if not 1 <= hidden <= config.hidden_size or hidden % 2:
        raise UsageError(f"a width of {hidden}: it must be even and at most the target's, {config.hidden_size}")


def norms(network: Any) -> dict[str, nn.Module]:
    """The norms before sublayers and the last one, by name; not those of queries and keys."""
    return {name: module for name, module in network.named_modules() if name.rpartition(".")[2] in NORMS}


def observed(network: Any, texts: Sequence[Sequence[int]]) -> tuple[Tensor, dict[str, Tensor]]:
    """The covariance [H, H] of a network's normalised residual stream, and Σ |x| of every input of the
    matrices that write into it, by their names."""
    width, sizes = network.config.hidden_size, dict[str, Tensor]()
    gram = torch.zeros(width, width, dtype=torch.float64, device=network.device)

    def stream(_: str, x: Tensor) -> None:
        rows = unit(x)
        gram.add_(rows.T @ rows)

    def written(name: str, x: Tensor) -> None:
        sizes[name] = sizes.get(name, 0) + x.flatten(0, -2).double().abs().sum(0)

    writers = {name: module for name, module in network.named_modules() if name.rpartition(".")[2] in WRITERS}
    with inputs(norms(network), stream), inputs(writers, written):
        read(network, texts)
    return gram, sizes


def lengths(network: Any, texts: Sequence[Sequence[int]], components: Tensor) -> dict[str, float]:
    """The mean share of the length of a norm's input in these components [H, h], by the names of norms."""
    found = dict.fromkeys(norms(network), 0.0)

    def add(name: str, x: Tensor) -> None:
        found[name] += float((unit(x) @ components).norm(dim=-1).sum()) / math.sqrt(x.shape[-1])

    with inputs(norms(network), add):
        tokens = read(network, texts)
    return {name: total / tokens for name, total in found.items()}


def read(network: Any, texts: Sequence[Sequence[int]]) -> int:
    """Run the texts through a network, one after the other; returns their number of tokens. UsageError without any."""
    texts = [list(text) for text in texts if len(text)]
    if not texts:
        raise UsageError("the importance of a target's parts is measured on texts, and no texts were given: give it "
            "some, or keep "
                         "layers evenly and all of its width")  # fmt: skip
    for text in texts:
        network(input_ids=torch.tensor([text], device=network.device), use_cache=False, logits_to_keep=1)
    return sum(map(len, texts))


def inputs(modules: dict[str, nn.Module], observe: Callable[[str, Tensor], None]) -> AbstractContextManager[None]:
    """Call observe(name, input) whenever one of these modules runs."""

    def hook(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        observe(name, args[0])

    return hooked(module.register_forward_pre_hook(partial(hook, name)) for name, module in modules.items())


def without_norms(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same function with norms whose weights are 1: they are multiplied into the matrices after them."""
    found = dict(weights)
    for name, norm in weights.items():
        before, _, end = name.removesuffix(".weight").rpartition(".")
        for part in NORMS.get(end, ()):
            matrix = f"{part}.weight" if part in ENDS else f"{before}.{part}.weight"
            found[matrix] = weights[matrix] * norm
    return found


@dataclass(frozen=True)
class Cut:
    """The kept part of a layer: rows of its queries, rows of its keys and values, channels of its MLP."""

    queries: Tensor
    keys: Tensor
    channels: Tensor

    @staticmethod
    def of(layer: int, weights: dict[str, Tensor], sizes: dict[str, Tensor], old: Widths, new: Widths) -> "Cut":
        """The most important channels and heads; heads are cut by whole groups, and then equally in each group."""
        matter = {part: importance(layer, part, weights, sizes) for part in WRITERS}
        heads = matter["o_proj"].view(old.kv_heads, -1, old.head).sum(-1)
        groups = greatest(heads.sum(-1), new.kv_heads)
        members = torch.stack([greatest(heads[group], new.heads // new.kv_heads) for group in groups.tolist()])
        queries = (groups.unsqueeze(1) * heads.shape[1] + members).flatten()
        dims = torch.arange(old.head, device=heads.device)
        rows, keys = ((chosen.unsqueeze(1) * old.head + dims).flatten() for chosen in (queries, groups))
        return Cut(rows, keys, greatest(matter["down_proj"], new.intermediate))


def importance(layer: int, part: str, weights: dict[str, Tensor], sizes: dict[str, Tensor]) -> Tensor:
    """Mean |activation| × the norm of its output weights, for every input of a matrix that writes into the stream."""
    (name,) = (name for name in sizes if f".{layer}." in name and name.endswith(part))
    lengths: Tensor = weights[f"{name}.weight"].double().norm(dim=0)
    return sizes[name] * lengths


def greatest(values: Tensor, number: int) -> Tensor:
    """The indices of the greatest values, in rising order; ties go to the first."""
    return values.argsort(descending=True, stable=True)[:number].sort().values


def cut(name: str, weight: Tensor, cuts: Sequence[Cut], components: Tensor, gains: dict[str, float]) -> Tensor:
    """One weight of the narrower network."""
    *path, part, kind = name.split(".")
    if part in NORMS:
        return weight.new_full((components.shape[1],), gains[".".join([*path, part])])
    if part in ENDS:
        return weight @ components
    if part not in READERS and part not in WRITERS:
        return weight  # the norms of queries and keys, which have the width of a head
    kept = vars(cuts[int(next(filter(str.isdigit, path)))])[{**READERS, **WRITERS}[part]]
    if part in WRITERS:
        return components.T @ (weight if kind == "bias" else weight[:, kept])
    return (weight if kind == "bias" else weight @ components)[kept]


Keep = Literal["even", "first", "importance"]
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")  # lists with an entry per layer


@torch.no_grad()
def pruned(
    target: Any,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    keep: Keep = "even",
    texts: Sequence[Sequence[int]] = (),
) -> Any:
    """A draft with this many of the target's layers and this width (None: all of it), in the target's dtype.

    keep: evenly spaced layers with the first and the last, the first ones, or those that change
    their input most on `texts`, which are sequences of ids. Widths are pruned by activations on
    these texts. UsageError for unsupported cuts.
    """
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    kept = list(range(depth)) if layers is None else chosen_layers(target, layers, keep, texts)
    draft = with_own_layers(target, kept)
    return draft if hidden is None else rebuilt(draft, *narrowed(draft, hidden, texts))


def chosen_layers(target: Any, layers: int, keep: Keep, texts: Sequence[Sequence[int]]) -> list[int]:
    """The indices of the kept layers, in rising order."""
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    if not 1 <= layers <= depth:
        raise UsageError(f"a draft keeps 1 to {depth} of the layers of {type(target).__name__}, not {layers}")
    if keep == "first":
        return list(range(layers))
    if keep == "even":
        return [round(index * (depth - 1) / max(layers - 1, 1)) for index in range(layers)]
    influence = torch.tensor(block_influence(target, texts))
    return sorted(influence.argsort(descending=True, stable=True)[:layers].tolist())


@torch.no_grad()
def block_influence(network: Any, texts: Sequence[Sequence[int]]) -> list[float]:
    """1 − cos(in, out) of every layer, the mean over all tokens of
    the texts (ShortGPT, Men et al. 2024, arXiv 2403.03853, §2.2)."""
    _, _, layers = layers_of(network, network.config.get_text_config(decoder=True).num_hidden_layers)
    found = [0.0] * len(layers)

    def add(index: int, _: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], out: Any) -> None:
        before, after = args[0] if args else named["hidden_states"], out if isinstance(out, Tensor) else out[0]
        found[index] += float((1 - torch.cosine_similarity(before.double(), after.double(), dim=-1)).sum())

    hooks = [partial(add, index) for index in range(len(layers))]
    with hooked(layer.register_forward_hook(hook, with_kwargs=True) for layer, hook in zip(layers, hooks, strict=True)):
        tokens = read(network, texts)
    return [total / tokens for total in found]


def with_own_layers(target: Any, kept: Sequence[int]) -> Any:
    """A copy of the target with only these layers, as a network of its architecture would be loaded."""
    config = copy.deepcopy(target.config)
    text = config.get_text_config(decoder=True)
    _, _, layers = layers_of(target, text.num_hidden_layers)
    for name in PER_LAYER:
        if len(entries := getattr(text, name, None) or ()) == text.num_hidden_layers:
            setattr(text, name, [entries[index] for index in kept])
    text.num_hidden_layers = len(kept)
    prefix = next(name for name, module in target.named_modules() if module is layers)
    weights = target.state_dict()
    found = {name: weight for name, weight in weights.items() if not name.startswith(f"{prefix}.")}
    for place, index in enumerate(kept):
        own = f"{prefix}.{index}."
        found |= {
            f"{prefix}.{place}.{name.removeprefix(own)}": weight
            for name, weight in weights.items()
            if name.startswith(own)
        }
    return rebuilt(target, config, found)


def rebuilt(original: Any, config: Any, weights: Mapping[str, Tensor]) -> Any:
    """A network of this configuration with these weights, copied; UsageError if they do not fit."""
    try:
        with torch.device(original.device):
            network = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=original.dtype, attn_implementation=original.config._attn_implementation
            )
        network.load_state_dict(weights)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{type(original).__name__} cannot lose layers or width here ({first_line(error)}): start from a fresh "
            "draft, or keep all of it"
        ) from error
    network.generation_config = copy.deepcopy(original.generation_config)
    return network.eval()
