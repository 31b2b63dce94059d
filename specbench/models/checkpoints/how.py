"""How a network is wanted, besides its dtype and device: quantised, divided, and with which attention.

Knows the words of the settings; must not know how any of them is done.
"""

from dataclasses import dataclass
from typing import Any

from specbench.errors import UsageError
from specbench.models.checkpoints.architectures import attention
from specbench.models.network.attention import NAME
from specbench.models.network.flexible import FLEX

MASKED = ("sdpa", "eager")
DIVIDED = "flex"


@dataclass(frozen=True)
class How:
    """The settings `quantize` (or `draft_quantize`), `attn_implementation`, `device_map` and `tensor_parallel` of one
    network; None is the usual."""

    quantize: str | None = None
    attention: str | None = None
    device_map: str | None = None
    parallel: int | None = None

    def attention_of(self, config: Any) -> str:
        """The attention that transformers is to use for a configuration. UsageError where it is not to be had."""
        own = attention(config)
        if self.attention is None:
            return own
        if self.attention == DIVIDED and own == NAME:
            return FLEX
        if self.attention not in MASKED:
            raise UsageError(
                f"--attn-implementation {self.attention}: token trees and rollback need attention that takes a mask "
                "of its own for every query, which only sdpa and eager do, and flex "
                "where an architecture is given its attention by name"
            )
        if self.attention == "sdpa" and own == "eager":
            raise UsageError(f"--attn-implementation sdpa: {config.model_type} has no other than eager")
        return self.attention


AS_STORED = How()
