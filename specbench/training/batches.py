"""From examples to batches of token ids: which sequences are learned in which pass, a pure function of its number.

Knows examples by their ids; must not know files, networks or losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specbench.training.cache import Example, Examples
from specbench.training.recipe import Recipe

SORTED = 16  # batches within which sequences are sorted by length: short ones are not padded to long ones


@dataclass(frozen=True)
class Batch:
    """Sequences side by side: ids [B, L], padded on the right, and learned [B, L − 1], true where the next token is
    learned. `examples` are what they were cut from, and `ends` [B] where in these they end."""

    ids: Tensor
    learned: Tensor
    examples: Sequence[Example]
    ends: Sequence[int]

    @property
    def fed(self) -> Tensor:
        """[B, L − 1] what the networks are fed."""
        return self.ids[:, :-1]

    @property
    def following(self) -> Tensor:
        """[n] the tokens that are learned, row by row."""
        return self.ids[:, 1:][self.learned]

    @property
    def tokens(self) -> int:
        """n, how many tokens are learned."""
        return int(self.learned.sum())

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.learned.to(device), self.examples, self.ends)


def batch_of(examples: Sequence[Example], length: int, seed: tuple[int, ...] = (0,), prompts: bool = False) -> Batch:
    """The examples as one batch; of one that is longer than `length` a part with learned tokens, chosen by the seed.

    prompts: whether these are learned, too.
    """
    random = np.random.default_rng(seed)
    parts = [part_of(example, length, random) for example in examples]
    longest = max(len(ids) for ids, _, _ in parts)
    ids = torch.zeros((len(parts), longest), dtype=torch.long)
    learned = torch.zeros((len(parts), longest - 1), dtype=torch.bool)
    for row, (tokens, start, _) in enumerate(parts):
        ids[row, : len(tokens)] = torch.as_tensor(np.asarray(tokens, dtype=np.int64))
        learned[row, 0 if prompts else max(start, 1) - 1 : len(tokens) - 1] = True
    return Batch(ids, learned, examples, [end for *_, end in parts])


def part_of(example: Example, length: int, random: np.random.Generator) -> tuple[Sequence[int], int, int]:
    """At most `length` tokens of an example, from which of them on they are learned, and where they end in it."""
    size = len(example.ids)
    if size <= length:
        return example.ids, example.start, size
    least = min(example.start + length // 2, size)  # half of it is learned where the example has as much
    end = int(random.integers(max(least, length), size + 1))
    return example.ids[end - length : end], max(example.start - (end - length), 0), end


class Batches:
    """The batches of a run over some examples, in the order that a seed gives: every example once before any twice."""

    def __init__(self, examples: Examples, recipe: Recipe, processes: int = 1, process: int = 0) -> None:
        self.examples, self.recipe, self.part = examples, recipe, slice(process, None, processes)
        self.rows = min(recipe.rows * processes, len(examples))
        self.each = -(-len(examples) // self.rows)  # batches of an epoch
        self.arranged = lru_cache(maxsize=1)(self._arranged)

    def __call__(self, number: int) -> Batch:
        """What this process learns in pass `number`."""
        epoch, place = divmod(number, self.each)
        whole = self.arranged(epoch)[place]
        chosen = whole[self.part] if len(whole[self.part]) else whole[:1]  # a last batch may be small
        examples = [self.examples[int(i)] for i in chosen]
        return batch_of(examples, self.recipe.length, (self.recipe.seed, number), self.recipe.prompts)

    def _arranged(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.recipe.seed, epoch))
        order = random.permutation(len(self.examples))
        lengths = np.minimum(self.examples.lengths, self.recipe.length)
        block = self.rows * SORTED
        sorted_ = [
            part[np.argsort(lengths[part], kind="stable")] for part in np.split(order, range(block, len(order), block))
        ]
        batches = [part[i : i + self.rows] for part in sorted_ for i in range(0, len(part), self.rows)]
        return [batches[i] for i in random.permutation(len(batches))]
