"""The draft's own continuations of prompts, to learn from where it goes astray (GKD, Agarwal et al. 2023).

Knows the loop of decoding; must not know losses, or whose distributions the text will be judged by.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specbench.decoding.batch import decode_batches
from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from specbench.training.batches import Batch, batch_of
from specbench.training.cache import Example
from specbench.training.recipe import Recipe

WARMEST = 1.0  # where greedy decoding is learned for: drafts of the most probable tokens alone repeat themselves


def continued(batch: Batch, student: Any, recipe: Recipe, width: int, number: int) -> Batch:
    """The prompts of a batch with what the student writes after them, in the place of what the data has there.

    Text without a prompt is continued after its first quarter.
    """
    examples = [shortened(example, recipe.length) for example in batch.examples]
    longest = max(len(one.ids) - one.start for one in examples)
    seeds = np.random.default_rng((recipe.seed, number)).integers(2**62, size=len(examples)).tolist()
    student.eval()
    written = decode_batches(
        Speculate(NoDraft(), Causal(student, Law(recipe.temperature or WARMEST), width), Rejection()),
        [list(one.ids[: one.start]) for one in examples],
        seeds,
        rows=len(examples),
        new=longest,
        eos=(),
        device=next(student.parameters()).device,
    )
    found = [
        replace(one, ids=[*one.ids[: one.start], *trace.tokens], number=None)
        for one, trace in zip(examples, written, strict=True)
    ]
    return batch_of(found, recipe.length, (recipe.seed, number), recipe.prompts)


def shortened(example: Example, length: int) -> Example:
    """An example with a prompt that leaves half of `length` for what follows."""
    start = example.start if example.start > 1 else max(len(example.ids) // 4, 1)
    first = max(0, start - length // 2)
    ids: Sequence[int] = example.ids[first : first + length]
    return replace(example, ids=ids, start=start - first)
