"""Tiny heads that draft in one pass, over a tiny target, and what they should give by the slow equations.

The target's hidden rows come from a plain pass over the whole text, whatever anybody's cache holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.decoding.types import Context
from specbench.models.checkpoints.description import attention
from specbench.models.heads.build import built
from specbench.models.heads.dflash import Pard
from specbench.models.heads.files import read_head
from specbench.models.heads.together import Together
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import layers_of
from tests.support import parallel_oracle as oracle
from tests.support.heads import write_head
from tests.support.tiny import in_double, network

V, K = 7, 3
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}


def gate(tensors: dict[str, Tensor]) -> None:
    """Add the gate of a DSpark head's correction."""
    rank, width = tensors["markov_head.markov_w2.weight"].shape[1], len(tensors["norm.weight"])
    generator = torch.Generator().manual_seed(5)
    tensors["markov_head.gate_proj.weight"] = torch.randn(rank, width + rank, generator=generator)
    tensors["markov_head.gate_proj.bias"] = torch.randn(rank, generator=generator)


def recurrent(tensors: dict[str, Tensor]) -> None:
    """Add what makes a DSpark head's correction go along the block."""
    rank, width = tensors["markov_head.markov_w2.weight"].shape[1], len(tensors["norm.weight"])
    generator = torch.Generator().manual_seed(6)
    tensors["markov_head.joint_proj.weight"] = torch.randn(3 * rank, 2 * rank + width, generator=generator)
    tensors["markov_head.joint_proj.bias"] = torch.randn(3 * rank, generator=generator)


SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {"heads": 4, "layers": 2}),
    "medusa of vLLM": ("medusa", {"heads": 4, "form": "vllm"}),
    "pard": ("pard", {"layers": 2}),
    "p-eagle": ("peagle", {"aux": (1, 2), "layers": 2, "names": "speculators"}),
    "p-eagle in windows": ("peagle", {"aux": (1, 2), "layers": 2, "names": "speculators",
                                      **WINDOWS}),
    "dflash": ("dflash", {"aux": (0, 1), "block": K + 1}),
    "dflash, some drafts": ("dflash", {"aux": (0, 1), "block": K + 3}),
    "dflash of speculators": ("dflash", {"aux": (0, 1), "block": K + 1, "names": "speculators"}),
    "dflash in windows": ("dflash", {"aux": (0, 1), "block": K + 1, **WINDOWS}),
    "dflash of speculators in windows": ("dflash", {"aux": (0, 1), "block": K + 1, "names": "speculators", **WINDOWS}),
    "dspark": ("dspark", {"aux": (0, 1), "block": K}),
    "dspark with a gate": ("dspark", {"aux": (0, 1), "block": K, "change": gate}),
    "dspark with a state": ("dspark", {"aux": (0, 1), "block": K, "change": recurrent}),
    "dspark with a state, from its masks": ("dspark", {"aux": (0, 1), "block": K + 1, "change": recurrent,
                                                       "config": {"sample_from_anchor": False}}),
    "dspark of speculators": ("dspark", {"aux": (0, 1), "block": K, "names": "speculators", "confidence": True}),
}  # fmt: skip


@dataclass
class Plain:
    """Hidden rows of a network at some boundaries, from a pass over the texts of a context as they are now."""

    net: Any
    boundaries: Sequence[int | str]
    context: Context | None = None
    shift: int = 0

    def at(self, slots: Tensor, row: int | None = None) -> Tensor:
        if not self.boundaries:
            return torch.zeros((*slots.shape, 0))
        assert self.context is not None
        seq = self.context.seq[:, : int(self.context.pos.max()) + 1]
        seq = seq if row is None else seq[row : row + 1]
        slots = (slots - self.shift).clamp_min(0)
        rows = features(self.net, seq, self.boundaries)
        return rows.gather(1, slots.unsqueeze(2).expand(-1, -1, rows.shape[-1]))


@torch.no_grad()
def features(net: Any, ids: Tensor, boundaries: Sequence[int | str]) -> Tensor:
    """[B, L, A·H] side by side; h[j] is what layer j leaves, before any norm."""
    seen: dict[int | str, Tensor] = {}
    _, _, layers = layers_of(net, net.config.num_hidden_layers)

    def keep(name: int | str) -> Callable[..., None]:
        def hook(module: Any, given: Any, output: Any) -> None:
            seen[name] = output if isinstance(output, Tensor) else output[0]

        return hook

    modules: list[Any] = [net.get_input_embeddings(), *layers]
    hooks = [module.register_forward_hook(keep(number)) for number, module in enumerate(modules)]
    hooks.append(net.get_decoder().register_forward_hook(keep("z")))
    net(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[name] for name in boundaries], -1)


class Target(Causal):
    """The target as a model that tells its taps which texts there are."""

    def watched_by(self, taps: Plain) -> "Target":
        self.taps = taps
        return self

    def start(self, context: Context) -> None:
        self.taps.context = context
        super().start(context)


@dataclass
class Made:
    """A head of one kind over a target: `head` is its module, `w` and `c` its tensors and config.json."""

    kind: str
    net: Any
    head: Any
    w: dict[str, Tensor] = field(default_factory=dict)
    c: dict[str, Any] = field(default_factory=dict)
    form: str = ""

    def model(self, law: Sampling, context: Context | None = None, depth: int = K, **options: Any) -> Together:
        return Together(self.head, Plain(self.net, self.head.taps, context), law, self.vocab, depth, **options)

    def pair(self, law: Sampling, depth: int = K, **options: Any) -> tuple[Target, Together]:
        """The target and the head as models of one method."""
        taps = Plain(self.net, self.head.taps)
        draft = Together(self.head, taps, law, self.vocab, depth, **options)
        return Target(self.net, law, self.vocab, **options).watched_by(taps), draft

    @torch.no_grad()
    def rows(self, text: Sequence[int], path: Sequence[int], depth: int = K) -> Tensor:
        """[V] the logits after a text and some drafted tokens, by the slow equations."""
        ids = torch.tensor(text)
        told = features(self.net, ids[None, :-1], self.head.taps)[0] if len(text) > 1 and self.head.taps else None
        place = len(path)
        if self.kind == "pard":
            return oracle.pard(self.head.network, self.head.mask, ids, depth)[place]
        assert told is not None
        if self.kind == "medusa":
            return oracle.medusa(self.w, told[-1], depth)[place]
        if self.kind == "peagle":
            embed = self.w.get("embed_tokens.weight", self.net.get_input_embeddings().weight)
            return oracle.peagle(self.w, self.c, embed, ids, told, depth)[place]
        block = torch.cat([ids[-1:], torch.full((self.c["block_size"] - 1,), self.mask)])
        states = oracle.dflash(self.w, self.c, self.net.get_input_embeddings()(block), told, self.form)
        skipped = 0 if self.c.get("sample_from_anchor", self.kind == "dspark") else 1
        logits = F.linear(states[place + skipped], self.w.get("lm_head.weight", self.net.lm_head.weight))
        if self.kind != "dspark":
            return logits
        tokens = [text[-1]] * skipped + [text[-1], *path]
        return logits + oracle.markov(self.w, torch.tensor(tokens), states[: len(tokens)])

    @property
    def vocab(self) -> int:
        return int(self.net.config.vocab_size)

    @property
    def mask(self) -> int:
        return int({**self.c, **self.c.get("dflash_config", {})}["mask_token_id"])


def made(name: str, folder: Path, vocab: int = V, **more: Any) -> Made:
    kind, switches = SWITCHES[name]
    net = network("llama", vocab)
    write_head(folder, kind, net.config, **{"scale": 0.8, **switches, **more})
    head = read_head(folder, "head")
    assert head is not None
    if kind == "pard":
        draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        draft.config._attn_implementation = attention(draft.config)
        return Made(kind, net, Pard(in_double(draft), vocab))
    w = {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in head.tensors.items()}
    if switches.get("form"):
        w = {key.replace("blocks.", "").replace("layers.", "").replace(".weight", ".linear.weight") if "blocks" in key
             else key: tensor for key, tensor in w.items()}  # fmt: skip
    return Made(kind, net, in_double(built(head, net)), w, dict(head.config), head.format)
