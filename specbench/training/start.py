"""The starting point of a draft: a fresh Llama of a given shape, or of the widest within a
number of parameters; and its files, each written completely or not at all."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.errors import UsageError
from specbench.files import filling
from specbench.models.checkpoints import reduced
from specbench.models.checkpoints.check import context_length
from specbench.models.network.sampling import ReducedHead
from specbench.wording import first_line

LAST = "model.safetensors"  # its file appears last: if it exists, the others do
WHOLE = "1TB"  # a single file of weights


def save_draft(model: Any, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write a draft, by default in its own dtype, each file wholly or not at all. UsageError on failure."""
    try:
        with filling(folder, LAST) as scratch:
            kind = dtype or model.dtype
            transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            head = model.get_output_embeddings()
            found, cast = dict[str, Tensor](), dict[int, Tensor]()
            cut = isinstance(head, ReducedHead)
            own = {f"{name}.{part}" for name, one in model.named_modules() if one is head for part in ("weight", "ids")}
            for name, tensor in model.state_dict().items():
                if not (cut and name in own):
                    found[name] = cast.setdefault(tensor.data_ptr(), in_dtype(tensor, kind))
            if cut:
                found |= {name: in_dtype(tensor, kind) for name, tensor in reduced.stored(head).items()}
            model.save_pretrained(scratch, state_dict=found, max_shard_size=WHOLE)
            model.config.dtype = kind  # transformers has written the network's own dtype there
            model.config.save_pretrained(scratch)
            model.config.dtype = model.dtype
            # safetensors makes its files unreadable for others
            (scratch / LAST).chmod((scratch / "config.json").stat().st_mode)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot write the draft to {folder}: {first_line(error)}") from error


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().cpu().to(dtype) if tensor.is_floating_point() else tensor.detach().cpu()


HEAD = 64  # dimensions of an attention head
STEP = 32  # widths are multiples of it, as processors multiply matrices in tiles
MLP, WIDEST = 8 / 3, 4  # MLP width ÷ residual width: Llama's, and the maximum in `sized`
LONGEST = 1 << 20  # context of a draft whose target has no limit
ROWS = 1 << 14  # rows of an embedding multiplied in float64 at once


@dataclass(frozen=True)
class Shape:
    """The sizes of a draft: `heads` query heads on `kv_heads` heads of keys and values, of 64 dimensions each.

    heads must divide `hidden`, as transformers requires of a Llama, but need not fill it.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int

    def __post_init__(self) -> None:
        reason = ""
        if min(self.layers, self.hidden, self.intermediate, self.heads, self.kv_heads) < 1:
            reason = "every size must be at least 1"
        elif self.hidden % self.heads or self.heads % self.kv_heads:
            reason = (
                f"the number of heads, {self.heads}, must divide the width, {self.hidden}, and be a multiple of that "
                f"of key/value heads, {self.kv_heads}; a head has an even number of dimensions, not {HEAD}"
            )
        if reason:
            raise UsageError(f"a draft of {self.layers} layers of width {self.hidden}: {reason}")

    @staticmethod
    def of(
        layers: int,
        hidden: int,
        intermediate: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> "Shape":
        """The shape of this depth and width; missing sizes are derived. UsageError for an impossible one."""
        divisors = (number for number in range(1, hidden + 1) if hidden % number == 0)
        heads = heads or min(divisors, key=lambda number: abs(number - hidden / HEAD))
        kv_heads = kv_heads or (heads // 2 if heads % 2 == 0 else heads)
        return Shape(layers, hidden, intermediate or rounded_up(hidden * MLP), heads, kv_heads)

    def parameters(self, vocabulary: int, reduced: int | None = None) -> int:
        """The number of weights of a draft with a tied head, or with one of its own for `reduced` tokens."""
        attention = 2 * HEAD * (self.heads + self.kv_heads) * self.hidden
        layer = attention + (3 * self.intermediate + 2) * self.hidden
        return self.layers * layer + (vocabulary + (reduced or 0) + 1) * self.hidden


def rounded_up(width: float) -> int:
    return math.ceil(width / STEP) * STEP


def sized(parameters: int, layers: int, target: Any, reduced: int | None = None, in_layers: bool = False) -> Shape:
    """The widest shape of this depth within `parameters`, for the vocabulary of a target's configuration.

    in_layers: embedding and head do not count. The rest below a further step of width goes to
    the MLP, up to its maximum width. UsageError if nothing fits.
    """
    vocabulary = 0 if in_layers else int(target.get_text_config(decoder=True).vocab_size)

    def size(shape: Shape) -> int:
        return shape.parameters(vocabulary, reduced=reduced)

    most = parameters // vocabulary if vocabulary else math.isqrt(parameters)
    shapes = (Shape.of(layers, hidden) for hidden in range(STEP, most + 1, STEP))
    widest = max((shape for shape in shapes if size(shape) <= parameters), key=lambda shape: shape.hidden, default=None)
    if widest is None:
        where = "in its layers" if in_layers else f"for a vocabulary of {vocabulary:,} tokens"
        raise UsageError(
            f"no draft of {layers} layers {where} has {parameters:,} parameters or fewer: the narrowest has "
            f"{size(Shape.of(layers, STEP)):,}; allow more, or take fewer layers"
        )
    widths = range(widest.intermediate, WIDEST * widest.hidden + 1, STEP)
    return [shape for width in widths if size(shape := replace(widest, intermediate=width)) <= parameters][-1]


def fresh(shape: Shape, target: Any, seed: int, *, embedding: Tensor | None = None) -> LlamaForCausalLM:
    """A new draft of this shape in float32, for a target of this configuration: it has its
    vocabulary, special ids, context and rope base.

    embedding [V, H]: that of the target. The draft's is then its best low-rank approximation (up
    to a factor), in which tokens that are similar for the target are similar from the start.
    """
    config = config_of(shape, target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = LlamaForCausalLM(config)
    for block in draft.model.layers:
        silence(block, shape.layers)
    if embedding is not None:
        matrix = embedding.detach()
        gram = torch.zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64, device=matrix.device)
        for rows in torch.split(matrix, ROWS):
            gram += rows.double().T @ rows.double()
        # eigh sorts in ascending order
        directions: Tensor = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, : shape.hidden]
        components = matrix.float() @ directions.float()
        scale = config.initializer_range / components.square().mean().sqrt()
        draft.model.embed_tokens.weight.data[:, : components.shape[1]] = components.mul_(scale).cpu()
    return draft


def config_of(shape: Shape, target: Any) -> LlamaConfig:
    text = target.get_text_config(decoder=True)
    return LlamaConfig(
        vocab_size=text.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=HEAD,
        max_position_embeddings=min(context_length(text), LONGEST),
        rope_parameters={"rope_type": "default", "rope_theta": rope_base(text)},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=math.sqrt(2 / (5 * shape.hidden)),  # Nguyen and Salazar 2019 (arXiv 1910.05895), §2.2
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
    )


def rope_base(text: Any) -> float:
    """The rope base of a configuration, of its full attention if layers differ; Llama's if missing."""
    rope = getattr(text, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    return float(rope.get("rope_theta", 10000.0))


def silence(block: nn.Module, layers: int) -> None:
    """Scale down a fresh layer's writes into the residual stream (GPT-2 §2.3)."""
    for projection in (block.self_attn.o_proj, block.mlp.down_proj):  # type: ignore[union-attr]
        projection.weight.data.mul_((2 * layers) ** -0.5)  # type: ignore[operator,union-attr]
