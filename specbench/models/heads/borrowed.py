"""What a head borrows from its target: the embedding, and the head that makes logits of a last hidden state.

Both stay the target's: they are no weights of the head, and take no memory of their own. Knows a network of
transformers; must not know heads.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Borrowed:
    """The target of a head. `width` and `vocabulary` are those of its hidden states and of its logits."""

    network: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> "Borrowed":
        """A copy of a head borrows from the same target, or from the copy of it that there is."""
        return Borrowed(memo.get(id(self.network), self.network))

    @property
    def config(self) -> Any:
        return self.network.config.get_text_config(decoder=True)

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.get_input_embeddings().weight.device
        return device

    def embed(self, ids: Tensor) -> Tensor:
        """[B, q, H] the embeddings of ids [B, q], as the module of the target gives them."""
        found: Tensor = self.network.get_input_embeddings()(ids)
        return found

    def angles(self, hidden: Tensor, positions: Tensor) -> Any:
        """The rotary angles of positions [B, q], as the layers of the target take them."""
        return self.network.get_decoder().rotary_emb(hidden, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, q, V] what the target makes of a normed last hidden state [B, q, H]: its head, scaled and capped."""
        logits: Tensor = self.network.get_output_embeddings()(hidden)
        if scale := getattr(self.config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if scale := getattr(self.config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if cap := getattr(self.config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits
