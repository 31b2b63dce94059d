"""Which examples are held out of training, decided by the names of their prompts: the same on every machine. Pure."""

import numpy as np
from numpy.typing import NDArray

SHARE = 0.05
BOUND = np.uint64(int(SHARE * 2**64))

Keys = NDArray[np.uint64]  # what prompts are known by, evenly spread


def held_out(keys: Keys, categories: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[n] which of n examples are held out: about 5 % of the prompts, of every category that has several at least one.

    What has one key stays together, so turns of a conversation and samples of a prompt never fall on both sides; and
    of every category at least one prompt is learned from.
    """
    chosen = [chosen_of(np.unique(keys[categories == one])) for one in np.unique(categories)]
    return np.isin(keys, np.concatenate(chosen)) if chosen else np.zeros(len(keys), dtype=bool)


def chosen_of(keys: Keys) -> Keys:
    """Of the prompts of a category, in ascending order, those that are held out."""
    count = int((keys < BOUND).sum())
    return keys[: min(max(count, 1), len(keys) - 1)]
