"""A sample that is fair to every category and fixed by a seed, whatever the order of the data.

The first N rows would not do: of Spec-Bench, the first 80 are MT-Bench alone. Knows categories and row numbers only.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def sample(categories: Sequence[str], take: Callable[[int], T | None], limit: int | None, seed: int) -> list[T]:
    """What `take` makes of `limit` rows, each category in proportion to its rows; in the order of the data.

    `take` is costly and may refuse a row with None: it is called once for a row, and only as rows are drawn. A category
    that runs out of usable rows leaves its share to the others.
    """
    if limit is None:
        return [item for row in range(len(categories)) if (item := take(row)) is not None]
    queues = strata(categories, seed)
    sizes = [len(queue) for queue in queues]
    drawn: list[list[tuple[int, T]]] = [[] for _ in queues]
    while True:
        quotas = apportion(limit, sizes)
        for queue, items, quota in zip(queues, drawn, quotas, strict=True):
            draw_rows(queue, items, quota, take)
        if all(len(items) >= quota for items, quota in zip(drawn, quotas, strict=True)):
            break
        sizes = [size if queue else len(items) for size, queue, items in zip(sizes, queues, drawn, strict=True)]
    chosen = [pair for items, quota in zip(drawn, quotas, strict=True) for pair in items[:quota]]
    return [item for _, item in sorted(chosen, key=lambda pair: pair[0])]


def draw_rows(queue: list[int], items: list[tuple[int, T]], quota: int, take: Callable[[int], T | None]) -> None:
    """Move rows from the queue until `quota` usable ones are there, or none is left."""
    while queue and len(items) < quota:
        row = queue.pop(0)
        item = take(row)
        if item is not None:
            items.append((row, item))


def strata(categories: Sequence[str], seed: int) -> list[list[int]]:
    """The row numbers of each category; categories and rows in an order of the seed, the same on every Python."""
    groups: dict[str, list[int]] = {}
    for row, category in enumerate(categories):
        groups.setdefault(category, []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: digest(seed, row))
    return [groups[category] for category in sorted(groups, key=lambda category: digest(seed, category))]


def digest(seed: int, what: object) -> bytes:
    return hashlib.sha256(f"{seed}:{what}".encode()).digest()


def apportion(limit: int, sizes: Sequence[int]) -> list[int]:
    """Largest remainder; if the limit allows, every category that has rows gets one."""
    total = sum(sizes)
    limit = min(limit, total)
    least = [int(size > 0 and limit >= sum(s > 0 for s in sizes)) for size in sizes]
    counts = [max(least[i], limit * size // total) if total else 0 for i, size in enumerate(sizes)]

    def lack(i: int) -> int:
        return limit * sizes[i] - counts[i] * total

    while sum(counts) < limit:
        counts[max(range(len(sizes)), key=lack)] += 1
    while sum(counts) > limit:
        counts[min((i for i in range(len(sizes)) if counts[i] > least[i]), key=lack)] -= 1
    return counts
