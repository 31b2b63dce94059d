"""A process of several that hold one target together, for torchrun: the first one writes the rows that it computes.

`python -m tests.support.split_rows CHECKPOINT PARTS OUTPUT`: the rows of a prompt's end and of a drafted tree, and
after a rejection those of a chain, in float64.
"""

import sys
from pathlib import Path

import torch

from specbench.decoding.decode import begin
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import resolve
from specbench.models.execution import machine
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling

CPU = torch.device("cpu")


def rows(checkpoint: str, parts: int | None) -> list[torch.Tensor]:
    loaded = load_model(resolve(checkpoint), torch.float64, CPU, how=How(parallel=parts))
    model = Causal(loaded.model, Sampling(temperature=1.0), loaded.model.config.vocab_size)
    context = begin([[3, 1, 4, 1, 5], [9, 2, 6]], 8, 4, [], CPU)
    with torch.inference_mode():
        model.start(context)
        ids, drawn = model.sample(context, 3, seeded([0, 1], CPU, agree=machine.decided))
        chain = model.probs(context, TokenTree.chain(ids))
        tree = model.probs(context, TokenTree(ids, (-1, 0, 0)))
    return [ids, drawn, chain, tree]


def main(checkpoint: str, parts: int, output: Path) -> None:
    with machine.together():
        found = rows(checkpoint, parts)
        if machine.first():
            torch.save(found, output)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
