"""The target states that heads read: their layers, their place in the cache, and whether these are the right ones.

h[0] is the embedding's output, h[j] that of layer j (counted from 1), before any last norm.
Heads number layers differently, and one that is off by one drafts without an error, only worse.
Hidden states are kept in the cache as one more layer, at the slots of the keys: every pass
writes them, they are moved as keys and values are, and a rollback is an overwrite.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from specbench.errors import UnusableModelError
from specbench.models.heads.parts import Borrowed, shape_of
from specbench.models.heads.recognition import Head, part
from specbench.models.network.attention import for_groups
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.causal import Causal
from specbench.models.network.passes import additive, causal_mask, windows_of
from specbench.models.network.skipping import hooked, layers_of, with_layers

# The meaning of an id i in a list: h[i]; h[i + 1], as the output of the layer with the index i; or, as
# engines disagree, h[i + 1] if the list begins with 1 and h[i] if not (SGLang, pull request 25454).
Meaning = Literal["boundary", "output", "either"]
TOP = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
OPTION = "--aux-layers"


@dataclass(frozen=True)
class Boundaries:
    """Boundaries j of the residual stream in rising order, and a sentence with the rule that gave them."""

    taken: tuple[int, ...]
    why: str


def boundaries(
    meaning: Meaning, ids: Sequence[int] | None, layers: int, count: int, override: Sequence[int] | None = None
) -> Boundaries:
    """The `count` boundaries that a head reads of a target with this many layers.

    ids: the list of its config.json, None if missing. override: boundaries that the user names, unchanged.
    UnusableModelError for a wrong number of boundaries, or ones outside the target; its words follow the head's name.
    """
    if override is not None:
        taken, rule = list(override), f"{OPTION} names them"
    elif ids is None:
        taken, rule = _usual(meaning, layers, count), "its config.json names none, and these are usual"
    elif meaning == "output" or (meaning == "either" and ids[:1] == [1]):
        taken, rule = [id_ + 1 for id_ in ids], f"its config.json names the outputs of layers {_listed(ids)}"
    else:
        taken, rule = list(ids), "its config.json names them"
    if len(taken) != count:
        raise UnusableModelError(
            f"its fc reads {count} layers of the target, and there are {len(taken)} ({rule}): name them with {OPTION}"
        )
    if list(taken) != sorted(set(taken)) or taken[0] < 0 or taken[-1] > layers:
        raise UnusableModelError(
            f"it reads the boundaries {_listed(taken)} ({rule}), and a target of {layers} layers has 0 to {layers}: "
            f"name others, in rising order, with {OPTION}, or give the target that it was trained with"
        )
    return Boundaries(tuple(taken), f"reads the target at boundaries {_listed(taken)}: {rule}")


def reads(head: Head, target: Borrowed, width: int, override: Sequence[int] | None) -> Boundaries:
    """The boundaries read by a head with an `fc` from states of this width. UnusableModelError as above."""
    columns = shape_of(head, "fc.weight")[1]
    if columns % width:
        raise UnusableModelError(
            f"{head.name}: weights do not fit config.json: fc reads {columns} columns, and the target is {width} wide"
        )
    meaning, ids = named_in(head)
    try:
        return boundaries(meaning, ids, target.layers, columns // width, override)
    except UnusableModelError as error:
        raise UnusableModelError(f"{head.name}: {error}") from error


def named_in(head: Head) -> tuple[Meaning, list[int] | None]:
    """The list of layers in a head's config.json, None if missing, and the meaning of its numbers."""
    config = head.config
    if ids := next((config[key] for key in TOP if config.get(key)), None):
        return "boundary", _numbers(head, ids)
    if head.kind in ("dflash", "dspark"):
        nested = part(config, "dflash_config").get("target_layer_ids")
        return "output", _numbers(head, nested or config.get("target_layer_ids"))
    return "either", _numbers(head, part(config, "eagle_config").get(TOP[0]))


def _numbers(head: Head, ids: Any) -> list[int] | None:
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
        raise UnusableModelError(f"{head.name}: unusable config.json: the layers that it reads are {ids!r:.80}")
    return sorted(ids)


def _usual(meaning: Meaning, layers: int, count: int) -> list[int]:
    """EAGLE-3 (SafeAILab; vLLM, SGLang): near the beginning, the middle, and near the end. DFlash: spread evenly."""
    if meaning == "output":
        return [round(1 + i * (layers - 4) / (count - 1)) + 1 if count > 1 else layers // 2 + 1 for i in range(count)]
    return [2, layers // 2, layers - 3] if count == 3 else []


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


Boundary = int | str  # h[j] of the residual stream, 0 before the first layer; "z" after the final norm


class Tapped:
    """A network that writes its hidden states at some boundaries to its cache, concatenated: [B, 1, slots, A · H].

    It shares all weights with `network`, which is unchanged. The cache has one layer more than
    the network. UnusableModelError for a nonexistent boundary.
    """

    def __init__(self, network: Any, boundaries: Sequence[Boundary]) -> None:
        self.layers = int(network.config.get_text_config(decoder=True).num_hidden_layers)
        self.network = with_layers(network, range(self.layers))
        self.config, self.dtype, self.device = self.network.config, network.dtype, network.device
        self.boundaries = tuple(boundaries)
        self.seen: dict[Boundary, Tensor] = {}
        for boundary in self.boundaries:
            listen(self.network, self.layers, boundary, self.seen)
        self.text = self.config.get_text_config(decoder=True)
        self.text.num_hidden_layers = self.layers + 1  # the layer for hidden states

    @property
    def width(self) -> int:
        """A · H."""
        return len(self.boundaries) * int(self.text.hidden_size)

    def __call__(self, *, past_key_values: RowStaticCache, **inputs: Any) -> Any:
        output = self.network(past_key_values=past_key_values, **inputs)
        states = torch.cat([self.seen[boundary] for boundary in self.boundaries], -1).unsqueeze(1)
        past_key_values.rows[self.layers].update(states, states[..., :0])
        self.seen.clear()
        return output


def listen(network: Any, depth: int, boundary: Boundary, heard: dict[Boundary, Tensor]) -> RemovableHandle:
    """Hook a network of `depth` layers so that every pass writes its states [B, q, H] at a boundary to `heard`;
    transformers' own record has the last hidden state normed. UnusableModelError if the boundary does not exist."""

    def given(module: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        heard[boundary] = inputs[0] if inputs else named["hidden_states"]

    def left(module: Any, inputs: Any, output: Any) -> None:
        heard[boundary] = output if isinstance(output, Tensor) else output[0]

    _, _, layers = layers_of(network, depth)
    if boundary == "z":
        handle: RemovableHandle = network.get_decoder().register_forward_hook(left)
        return handle
    if boundary not in range(depth + 1):
        raise UnusableModelError(
            f"the head reads hidden rows after layer {boundary} of {depth}: it was trained for another target"
        )
    if boundary == 0:
        return layers[0].register_forward_pre_hook(given, with_kwargs=True)
    return layers[int(boundary) - 1].register_forward_hook(left)


class Taps:
    """The hidden states of the tokens fed to `judge`, whose network is `tapped`."""

    def __init__(self, judge: Causal, tapped: Tapped) -> None:
        self.judge, self.width = judge, tapped.width

    def at(self, slots: Tensor, row: int | None = None) -> Tensor:
        """[B, q, A · H] the states at slots [B, q]; of the sequences of all rows, or of the one in `row` (B = 1).

        All exist before P, the position of the last committed token; a slot that was never fed has zeros.
        """
        assert self.judge.cache is not None, "the judge takes in the prompts first"
        layer = self.judge.cache.rows[-1]
        if layer.keys is None:  # prompts of one token: nothing was fed yet
            return torch.zeros((*slots.shape, self.width), dtype=self.judge.dtype, device=slots.device)
        return layer.at(slots) if row is None else layer.at(slots, slice(row, row + 1))


@torch.no_grad()
def whole_pass(module: Any, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """ids [B, T] and states [B, T, width] of pairs 0 to T − 1 → logits [B, T, V] and the next states [B, T, width]."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return module(ids, states, positions, masks(module, positions, ids.shape[1]))  # type: ignore[no-any-return]


def masks(module: Any, slots: Tensor, reach: int) -> Any:
    """The mask of pairs at slots [B, q] over the first `reach` ones, in the form that a head's layers take."""
    seen = {name: causal_mask(slots, reach, window) for name, window in windows_of(module.config).items()}
    ready = {name: for_groups(additive(mask, module.dtype), module.config) for name, mask in seen.items()}
    return ready.get("", ready)


CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Agreement:
    """The share of `rows` predictions that are the target's; `error` is its standard error. same: the mask, [rows]."""

    share: float
    error: float
    rows: int
    same: Tensor

    def clearly_below(self, other: "Agreement") -> bool:
        """Whether the other one, on the same text, is better by more than chance: by the error of the difference."""
        gain = other.same.double() - self.same.double()
        return bool(gain.mean() > CLEAR * gain.std() / sqrt(self.rows)) and bool(gain.mean() > 0)


@torch.no_grad()
def agreement(module: Any, network: Any, text: Tensor, taps: Sequence[Boundary] | None = None) -> Agreement:
    """Agreement of the argmax of a head with that of its target on a text [B, T] of ids, T at least 2.

    taps: the states given to the head, by default its own. One pass of the target and one of the head.
    """
    features, logits = read(network, text, module.taps if taps is None else taps)
    guessed, _ = whole_pass(module, text[:, 1:], module.enter(features[:, :-1]))
    same = (guessed.argmax(-1) == logits[:, 1:].argmax(-1)).flatten()
    share = float(same.double().mean())
    return Agreement(share, sqrt(share * (1 - share) / len(same)), len(same), same)


def shifted(taps: Sequence[Boundary], layers: int) -> tuple[Boundary, ...] | None:
    """The taps of a head whose list was counted from one less; None if the target lacks one of them."""
    found = tuple(tap + 1 for tap in taps if isinstance(tap, int))
    return found if len(found) == len(taps) and max(found) <= layers else None


@torch.no_grad()
def read(network: Any, text: Tensor, taps: Sequence[Boundary]) -> tuple[Tensor, Tensor]:
    """[B, T, A·H] a target's states at the taps, and its logits [B, T, V]: one pass without a cache."""
    with listening(network, taps) as heard:
        logits = network(input_ids=text, use_cache=False).logits
    return torch.cat([heard[tap] for tap in taps], -1), logits


@contextmanager
def listening(network: Any, taps: Sequence[Boundary]) -> Iterator[dict[Boundary, Tensor]]:
    """The states at the taps during the enclosed calls."""
    heard: dict[Boundary, Tensor] = {}
    with hooked(listen(network, Borrowed(network).layers, tap, heard) for tap in taps):
        yield heard
