"""What trained heads of every format are made of: their config.json and tensors, by the published layouts.

`specbench.models.heads` has these layouts as well, but as a reader: here they are written out from their description.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Made = tuple[dict[str, Any], dict[str, Tensor]]  # config.json and tensors


@dataclass
class Maker:
    """Random tensors for a head of a target. H, L, V: its width, layers and vocabulary; width: that of the head."""

    target: Any
    width: int
    seed: int
    scale: float
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.heads = self.target.num_attention_heads
        self.groups = getattr(self.target, "num_key_value_heads", None) or self.heads
        self.size = getattr(self.target, "head_dim", None) or self.target.hidden_size // self.heads
        self.inner = 3 * self.width // 2

    def matrix(self, name: str, *shape: int) -> None:
        self.tensors[name] = self.scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def norm(self, name: str, size: int) -> None:
        self.tensors[name] = 1 + 0.3 * torch.randn(size, generator=self.generator, dtype=torch.float64)

    def attention(self, prefix: str, wide: int, bias: bool = False, qk_norm: bool = False) -> None:
        for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            self.matrix(f"{prefix}{name}_proj.weight", heads * self.size, wide)
            if bias:
                self.matrix(f"{prefix}{name}_proj.bias", heads * self.size)
        self.matrix(f"{prefix}o_proj.weight", self.width, self.heads * self.size)
        for name in ("q", "k") if qk_norm else ():
            self.norm(f"{prefix}{name}_norm.weight", self.size)

    def mlp(self, prefix: str) -> None:
        for name in ("gate", "up"):
            self.matrix(f"{prefix}{name}_proj.weight", self.inner, self.width)
        self.matrix(f"{prefix}down_proj.weight", self.width, self.inner)

    def layer(self, prefix: str, wide: int = 1, **attention: bool) -> None:
        """A decoder layer, all but its first norm; `wide` times as wide in its projections."""
        self.attention(f"{prefix}self_attn.", wide * self.width, **attention)
        self.norm(f"{prefix}post_attention_layernorm.weight", self.width)
        self.mlp(f"{prefix}mlp.")

    def known(self, number: int) -> None:
        """The offsets and the mask of a draft vocabulary of so many tokens, spread over the whole one."""
        ids = torch.arange(number) * self.target.vocab_size // number
        self.tensors["d2t"] = ids - torch.arange(number)
        self.tensors["t2d"] = torch.zeros(self.target.vocab_size, dtype=torch.bool).index_fill(0, ids, value=True)

    def llama(self, **more: Any) -> dict[str, Any]:
        """The keys that a draft layer is described by. The base of its positions is its own."""
        shape = {"hidden_size": self.width, "intermediate_size": self.inner, "num_attention_heads": self.heads}
        shape |= {"num_key_value_heads": self.groups, "head_dim": self.size, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
        shape |= {"rope_theta": 5000.0, "max_position_embeddings": 256, "vocab_size": self.target.vocab_size}
        return {"model_type": "llama", "num_hidden_layers": 1, **shape, **more}


def eagle1(make: Maker, layers: int = 1, bias: bool = True, qkv_bias: bool = False, para_norm: bool = False,
           embed: bool = False) -> Made:  # fmt: skip
    width = make.width
    make.matrix("fc.weight", width, 2 * width)
    if bias:
        make.matrix("fc.bias", width)
    for number in range(layers):
        make.layer(f"layers.{number}.", bias=qkv_bias)
        if number:
            make.norm(f"layers.{number}.input_layernorm.weight", width)
    for name in ("embedding_layernorm", "hidden_states_layernorm") if para_norm else ():
        make.norm(f"{name}.weight", width)
    if embed:
        make.matrix("embed_tokens.weight", make.target.vocab_size, width)
    architectures = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "bias": bias}
    return make.llama(**architectures), make.tensors


def eagle3(make: Maker, vocab: int | None = None, aux: tuple[int, ...] | None = None, count: int = 3, layers: int = 1,
           qk_norm: bool = False, norm_before_fc: bool = False, fc_norm: bool = False, use_aux: bool = True,
           lm_head: bool = True, embed: bool = False, tie: bool = False, **keys: Any) -> Made:  # fmt: skip
    """aux: the ids as config.json has them; `count` says how many where it has none."""
    width, wide, tensors = make.width, make.target.hidden_size, make.tensors
    count = len(aux) if aux else count
    if use_aux:
        make.matrix("fc.weight", width, count * wide)
    if norm_before_fc:
        make.norm("input_norm.weight", count * wide)
    for number in range(count) if fc_norm else ():
        make.norm(f"fc_norm.{number}.weight", wide)
    for number in range(layers):
        make.layer(f"midlayer.{number}.", wide=1 if number else 2, qk_norm=qk_norm)
        make.norm(f"midlayer.{number}.input_layernorm.weight", width)
    make.norm("midlayer.0.hidden_norm.weight", width)
    make.norm("norm.weight", width)
    rows = make.target.vocab_size if vocab is None else vocab
    if lm_head:
        make.matrix("lm_head.weight", rows, width)
    if vocab is not None:
        make.known(vocab)
    if embed or width != wide:
        make.matrix("embed_tokens.weight", make.target.vocab_size, width)
    nested = {"use_aux_hidden_state": use_aux} | ({"eagle_aux_hidden_state_layer_ids": list(aux)} if aux else {})
    config = make.llama(
        architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=rows, num_hidden_layers=layers, **keys
    )
    config |= {"model_type": "qwen3" if qk_norm else "llama", "tie_word_embeddings": tie}
    config |= {"eagle_config": nested} if aux or not use_aux else {}
    return config | ({"target_hidden_size": wide} if wide != width else {}), tensors


def peagle(make: Maker, layers: int = 2, **switches: Any) -> Made:
    config, tensors = eagle3(make, layers=layers, embed=True, **switches)
    make.matrix("mask_hidden", 1, 1, tensors["fc.weight"].shape[1])
    return {**config, "mask_token_id": make.target.vocab_size - 1}, tensors


def medusa(make: Maker, heads: int = 3, layers: int = 1, form: str = "") -> Made:
    """form "vllm": one head matrix for all, and names of vLLM."""
    vocab, width = make.target.vocab_size, make.width
    for head in range(heads):
        for layer in range(layers):
            prefix = f"blocks.{head}.layers.{layer}" if form else f"{head}.{layer}.linear"
            make.matrix(f"{prefix}.weight", width, width)
            if not form:
                make.matrix(f"{prefix}.bias", width)
        if not form:
            make.matrix(f"{head}.{layers}.weight", vocab, width)
    if form:
        make.matrix("lm_head.weight", vocab, width)
        return {"model_type": "medusa", "num_heads": heads, "num_hidden_layers": layers, "hidden_size": width,
                "vocab_size": vocab, "truncated_vocab_size": vocab, "original_lm_head": True}, make.tensors  # fmt: skip
    return {"medusa_num_heads": 2, "medusa_num_layers": layers, "base_model_name_or_path": "base"}, make.tensors


def dflash(make: Maker, layers: int = 2, aux: tuple[int, ...] = (0, 1), block: int = 4, **more: Any) -> Made:
    width = make.width
    make.matrix("fc.weight", width, len(aux) * make.target.hidden_size)
    for name in ("hidden_norm.weight", "norm.weight"):
        make.norm(name, width)
    for number in range(layers):
        make.layer(f"layers.{number}.", qk_norm=True)
        make.norm(f"layers.{number}.input_layernorm.weight", width)
    nested = {"mask_token_id": make.target.vocab_size - 1, "target_layer_ids": list(aux)}
    config = make.llama(architectures=["DFlashDraftModel"], block_size=block, dflash_config=nested, **more)
    config |= {"model_type": "qwen3", "num_hidden_layers": layers, "num_target_layers": make.target.num_hidden_layers}
    return config, make.tensors


def dspark(make: Maker, rank: int = 4, confidence: bool = False, **switches: Any) -> Made:
    config, tensors = dflash(make, **switches)
    make.matrix("markov_head.markov_w1.weight", make.target.vocab_size, rank)
    make.matrix("markov_head.markov_w2.weight", make.target.vocab_size, rank)
    if confidence:
        make.matrix("confidence_head.proj.weight", 1, make.width)
        make.matrix("confidence_head.proj.bias", 1)
    return {**config, "architectures": ["DSparkDraftModel"], "sample_from_anchor": True}, tensors


KINDS: dict[str, Callable[..., Made]] = {
    "eagle1": eagle1,
    "eagle3": eagle3,
    "peagle": peagle,
    "medusa": medusa,
    "dflash": dflash,
    "dspark": dspark,
}
