"""In which order arms are decoded, with which seeds, and when one may look whether it is enough. The same everywhere.

Knows specs and names; must not know what a decode is.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from specbench.results import statistics
from specbench.spec import BASELINE, RunSpec

T = TypeVar("T")
REFILLS = 4  # prompts of a chunk per row


def seed_of(spec: RunSpec, prompt: str, repeat: int, arm: str) -> int:
    """The seed of one decode: different for every seed, prompt, repetition and arm, and the same on every machine."""
    digest = hashlib.sha256(f"{spec.seed}\0{prompt}\0{repeat}\0{arm}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) >> 1


def side(arm: str) -> str:
    """The name by which seeds know an arm: all methods and lookaheads draw the same uniforms, the baseline others."""
    return arm if arm == BASELINE else "method"


def order_of(arms: Sequence[str], seed: int, repeat: int, number: int) -> list[str]:
    """A random order of the arms; the next prompt (and the next repetition) has it reversed, so none is always early.

    The same in every process: a run that is continued goes on as it would have.
    """
    order = sorted(arms)
    random.Random(f"{seed} {number // 2}").shuffle(order)
    return order if (number + repeat) % 2 == 0 else order[::-1]


def chunks(prompts: Sequence[T], rows: int) -> list[Sequence[T]]:
    """The prompts of every turn: one by one, or where `rows` are decoded together four for each row at most.

    Prompts of a chunk share their time, so an interval is over chunks: there are five of them where each can still fill
    the rows, and fewer only where there are fewer prompts. All are about equally long.
    """
    if rows == 1:
        return [prompts[i : i + 1] for i in range(len(prompts))]
    count = max(-(-len(prompts) // (REFILLS * rows)), min(statistics.FEWEST, len(prompts) // rows), 1)
    ends = [i * len(prompts) // count for i in range(count + 1)]
    return [prompts[a:b] for a, b in pairwise(ends)]


def checkpoints(turns: int) -> Iterator[int]:
    """Where `until_ci` may look: after 20, 30, 45, 67 … turns. Looking after every prompt would stop on lucky ones."""
    look = statistics.ENOUGH
    while look < turns:
        yield look
        look += look // 2
