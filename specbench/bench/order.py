"""In which order arms are decoded, with which seeds, and when one may look whether it is enough. The same everywhere.

Knows specs and names; must not know what a decode is.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

from specbench.bench import statistics
from specbench.spec import BASELINE, RunSpec


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


def checkpoints(turns: int) -> Iterator[int]:
    """Where `until_ci` may look: after 20, 30, 45, 67 … turns. Looking after every prompt would stop on lucky ones."""
    look = statistics.ENOUGH
    while look < turns:
        yield look
        look += look // 2
