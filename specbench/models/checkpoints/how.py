"""How a network is wanted, besides its dtype and device: quantised, with which attention, spread over which memory.

Knows the words of the settings; must not know how any of them is done.
"""

from dataclasses import dataclass
from typing import Any

from specbench.errors import UsageError
from specbench.models.checkpoints.architectures import attention

EXACT = ("auto", "sdpa", "eager")


@dataclass(frozen=True)
class How:
    """The settings `quantize` (or `draft_quantize`), `attn_implementation` and `device_map` of one network."""

    quantize: str = "none"
    attention: str = "auto"
    device_map: str = "none"

    def attention_of(self, config: Any) -> str:
        """The attention that transformers is to use for a configuration. UsageError where it is not to be had."""
        if self.attention not in EXACT:
            raise UsageError(
                f"--attn-implementation {self.attention}: token trees and rollback need attention that takes a mask "
                f"of their own for every query, and only {', '.join(EXACT)} do"
            )
        own = attention(config)
        if self.attention == "sdpa" and own == "eager":
            raise UsageError(f"--attn-implementation sdpa: {config.model_type} has no other than eager")
        return own if self.attention == "auto" else self.attention


AS_STORED = How()
