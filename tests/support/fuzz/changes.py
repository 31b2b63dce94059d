"""Random changes of values, of trees of values and of bytes. Knows nothing of what they mean."""

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from tests.support.hostile import PAYLOADS

NUMBERS = ("-1", "0", "1", "2", "3", "1.5", "-0", "nan", "inf", "-inf", "1e400", "9" * 23, "9" * 5000, "0x10", "1_000",
           "٣", "½", "1,2", "1-3", "3-1", "1-", "2-4+0", "auto", "true", "null")  # fmt: skip
WORDS = ("", " ", "-", "--", "nope", "target", "[1]", "{a: 1}", "a" * 5000, "\udcff", "\x1b[31mred", "é", "=1+1")
PATHS = ("/", ".", "..", "/dev/zero", "/dev/null", "/proc/self/mem", "/proc/kmsg", "/nowhere/at/all", "~nobody", "pipe",
         "nope", "x" * 300, "in", "in/words.jsonl/x")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 10**9, 10**30, -0.5, 1e308, float("nan"), float("inf"), "", "x", "0", "9" * 400, [],
    {}, [[]], {"a": 1}, [1, 2], ["a"], "\x1b[31m", "\ud800", "<script>", "::error::x", "target", "float32", "llama",
)  # fmt: skip


BYTES = (b"\0", b"[" * 3000, b"{", b'"', b"\xff\xfe", b"\n", b"-1", b"9" * 500, b"&a *a")


def text(chance: random.Random) -> str:
    """What may stand where a text is wanted; no argument of a process holds a NUL."""
    every: Sequence[str] = chance.choice([NUMBERS, NUMBERS, WORDS, PATHS, [one[:9000] for one in PAYLOADS]])
    return chance.choice(every).replace("\0", " ")


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a tree of lists and mappings, its root left out."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in pairs for found in ((*path, key), *places(value, (*path, key)))]


def changed(chance: random.Random, tree: Any, times: int = 1) -> Any:
    """The tree with some values replaced, taken out or doubled."""
    made = deepcopy(tree)
    for _ in range(times):
        if not (every := places(made)):
            return chance.choice(VALUES)
        *path, last = chance.choice(every)
        around = made
        for key in path:
            around = around[key]
        change(chance, around, last)
    return made


def change(chance: random.Random, around: Any, key: Any) -> None:
    """Change one value where it stands."""
    what = chance.random()
    if what < 0.15:
        del around[key]
    elif what < 0.25 and isinstance(around, list):
        around.insert(key, deepcopy(around[key]))
    elif what < 0.3 and isinstance(around, dict):
        around[f"{key}_"] = around.pop(key)
    else:
        around[key] = deepcopy(chance.choice(VALUES))


def spoilt(chance: random.Random, content: bytes, times: int = 3, within: int | None = None) -> bytes:
    """Bytes with some of them flipped, cut out, doubled or replaced; in the first `within` of them, if that is said."""
    made = bytearray(content)
    for _ in range(chance.randint(1, times)):
        at = chance.randrange(max(min(len(made), within or len(made)), 1))
        length = chance.choice([1, 1, 4, 30])
        what = chance.randrange(5)
        if what == 0 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        elif what == 1:
            del made[at : at + length]
        elif what == 2:
            made[at:at] = made[at : at + length]
        elif what == 3:
            made[at : at + length] = chance.randbytes(length)
        else:
            made[at:at] = chance.choice(BYTES)
    return bytes(made[: chance.randrange(len(made) + 1)] if chance.random() < 0.1 else made)


def as_json(tree: Any) -> bytes:
    """JSON as Python writes it: with NaN, Infinity and lone surrogates."""
    return json.dumps(tree).encode()
