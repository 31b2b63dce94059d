"""Prompts of a length asked for, from any data set: other texts of the set stand before the one that is continued.

Knows the encoder as a function, because lengths are counted in its tokens; must not know models. What stands before a
text depends on the data set, the seed and the number of its row alone, so that a longer context ends as a shorter one.
"""

import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.data.longtext import WIDEST, Encode, is_long
from specbench.errors import UsageError
from specbench.wording import clean

BETWEEN = "\n\n"
DRAWN = 512  # texts of a set that are put in a random order at a time


@dataclass(frozen=True)
class Filling:
    """Texts in front of the texts of a set. length: tokens of a whole prompt at most, as `write` counts them."""

    texts: Sequence[str]
    length: int
    seed: int
    write: Encode

    def filled(self, row: int) -> str:
        """The text of a row after as many words of others as fit; alone where it leaves them no room."""
        own, before = self.texts[row], self.before(row)
        starts = [word.start() for word in re.finditer(r"\S+", before)][::-1]
        fit = bisect_right(starts, self.length, key=lambda start: self.size(before[start:], own))
        return f"{before[starts[fit - 1] :]}{BETWEEN}{own}" if fit else own

    def size(self, before: str, own: str) -> int:
        """The tokens of a prompt."""
        return len(self.write(f"{before}{BETWEEN}{own}"))

    def before(self, row: int) -> str:
        """Other texts, the first that were drawn last, with more characters than a prompt can have."""
        found, left = list[str](), self.length * WIDEST
        for text in self.others(row, random.Random(f"context:{self.seed}:{row}")):
            found.append(text)
            left -= len(text)
            if left <= 0:
                break
        return BETWEEN.join(reversed(found))[-self.length * WIDEST :]

    def others(self, row: int, chance: random.Random) -> Iterator[str]:
        """The texts of other rows in a random order, and again in another one; there must be one."""
        while True:
            drawn = chance.sample(range(len(self.texts)), min(len(self.texts), DRAWN))
            yield from (self.texts[one] for one in drawn if one != row)


def filling_of(
    dataset: str, texts: Sequence[str], context: int | None, longest: int | None, seed: int, write: Encode
) -> Filling | None:
    """How prompts of a data set become as long as the context; None where no other texts are needed for that.

    UsageError for a context that the models do not hold, or that one text cannot fill.
    """
    if context is None or is_long(dataset):
        return None
    if longest is not None and context > longest:
        raise UsageError(
            f"--context {context} is too long for these models: at most {longest} tokens leave room for the new ones; "
            f"choose a context of at most {longest}, or fewer new tokens"
        )
    if len(texts) == 1:
        raise UsageError(
            f"data set {clean(dataset, 300)} has one text and no others to fill a context of {context} tokens with: "
            f"take longdoc, or leave out --context"
        )
    return Filling(texts, context, seed, write)
