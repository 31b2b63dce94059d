"""Texts that several computations of one network decode greedily: equal, or parted where rounding may part them.

No test may know how a processor rounds. In float32 and bfloat16 two ways of computing a row choose differently where
two tokens are as good as equal, on one processor and not on the next: the rule of a run (`lossless`) says where.
"""

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from specbench.backends.base import Scores
from specbench.measure.lossless import Rescored, compare_outputs

Text = Sequence[int]


def same_texts(
    prompts: Sequence[Text], expected: Sequence[Text], found: Sequence[Text], *nets: Any, exact: Any = None
) -> None:
    """Assert that greedy texts of the networks `nets`, which compute one function, are the same but for near-ties.

    Near-tie: where two texts part, what parts them lies within the noise of each of the networks, its largest distance
    from `exact` (the first one in float64 unless given) in any logit. In float64 texts are equal.
    """
    outputs = [tuple(map(tuple, one)) for one in zip(prompts, expected, found, strict=True)]
    for net in nets:
        if net.dtype == torch.float64:
            assert [text for *_, text in outputs] == [text for _, text, _ in outputs]
            continue
        verdict = compare_outputs(outputs, Rescored(rounded(net, exact)), 2)  # type: ignore[arg-type]
        assert verdict.verdict in ("identical", "numeric"), verdict


def rounded(net: Any, exact: Any = None) -> Scores:
    """Logits of a text without rounding for a block of one token, as `net` rounds them for longer ones."""

    @torch.inference_mode()
    def scores(ids: Text, start: int, block: int) -> Tensor:
        one = net if block > 1 else in_float64(net) if exact is None else exact
        logits: Tensor = one(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
        return logits[0, start - 1 : -1, : net.config.vocab_size if exact is None else exact.config.vocab_size]

    return scores


@lru_cache(maxsize=8)
def in_float64(net: Any) -> Any:
    return copy.deepcopy(net).double()
