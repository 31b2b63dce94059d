"""How much memory decoding takes, in bytes from sizes alone, without what an allocator keeps to itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from specbench.wording import gigabytes, grouped

Kind = Literal["weights", "packed weights", "caches", "learning", "working memory"]
UPCAST = 4  # bytes of a number where a pass computes in float32 whatever the weights are
ROWS = 4  # float32 copies of a row of logits on its way to a verdict: scores, p or q, what is left of it, its sum


@dataclass(frozen=True)
class Network:
    """The sizes of a network: bytes of its weights, and of those that the host holds at most while they are read.

    kept: numbers that a layer keeps of a token, keys and values together. inner: the widest of what a layer computes.
    heads: of queries; `groups` of them share a key. scored: whether attention holds all its scores. masked: types of
    layer with a mask of their own. item: bytes of a number. packed: bytes of the weights that compiled rounds read.
    """

    weights: int
    read: int
    layers: int
    kept: int
    hidden: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    item: int
    scored: bool = False
    masked: int = 0
    packed: int = 0

    def of_layers(self, layers: int) -> "Network":
        """So many layers of it, on its weights."""
        return replace(self, layers=layers, weights=0, packed=0)

    def cache(self, length: int, rows: int) -> int:
        """A static cache of so many places."""
        return self.layers * self.kept * length * rows * self.item

    def learning(self, rows: int, vocabulary: int) -> int:
        """A copy that drafts, one in float32 if that is wider, gradients, two moments
        and a copy to go back to, and so many rows of a vocabulary in 16 bits."""
        wide = max(self.item, UPCAST)
        numbers = self.weights // self.item
        return numbers * (self.item + 4 * wide + (wide if wide > self.item else 0)) + 2 * rows * vocabulary

    def prefill(self, prompt: int, length: int, rows: int) -> int:
        """What a pass over the prompts holds at its fullest, in its widest layer."""
        mlp = 2 * self.hidden * (self.item + UPCAST) + 3 * self.inner * self.item
        scores = self.heads * length * (2 * self.item + UPCAST) if self.scored else 0
        masks = self.masked * self.groups * length * (self.item + 1)
        return rows * (prompt * (mlp + scores + masks) + self.vocabulary * (self.item + ROWS * UPCAST))

    def round(self, nodes: int, rows: int) -> int:
        """The rows of logits of a round: those of the verified tokens and those that the drafts were drawn from."""
        return rows * (2 * nodes + 1) * self.vocabulary * (self.item + ROWS * UPCAST)


@dataclass(frozen=True)
class Part:
    """What one role takes of one kind, in bytes."""

    role: str
    kind: Kind
    size: int


@dataclass(frozen=True)
class Arm:
    """A method as it is held ready: the networks that have caches, the places
    of each, the nodes of a round, and bytes that drafts take which learn."""

    networks: Sequence[Network]
    prompt: int
    length: int
    nodes: int
    rows: int
    learning: int = 0

    @property
    def sizes(self) -> list[int]:
        """Of every cache."""
        return [network.cache(self.length, self.rows) for network in self.networks]

    @property
    def caches(self) -> int:
        return sum(self.sizes)

    @property
    def working(self) -> int:
        """What its largest pass works with; a row that is refilled is taken in with caches of its own."""
        admitted = self.caches // self.rows if self.rows > 1 else 0
        passes = [n.prefill(self.prompt, self.length, self.rows) for n in self.networks]
        return admitted + max([*passes, *(n.round(self.nodes, self.rows) for n in self.networks)])


def shared(arms: Iterable[Arm]) -> int:
    """Bytes of the caches of arms that never run at once: with as many rows, the n-th cache of each is one memory."""
    by_rows = grouped(arms, lambda arm: arm.rows)
    return sum(max(sizes) for some in by_rows for sizes in zip_longest(*(arm.sizes for arm in some), fillvalue=0))


def parts(roles: Mapping[str, Network], groups: Sequence[Sequence[Arm]]) -> list[Part]:
    """What a run holds at its fullest: all weights, and the group of arms whose caches and learning take the most."""
    weights = [Part(name, "weights", net.weights) for name, net in roles.items()]
    weights += [Part(name, "packed weights", net.packed) for name, net in roles.items() if net.packed]
    fullest = max(groups, key=lambda arms: shared(arms) + sum(arm.learning for arm in arms), default=())
    working = max((arm.working for arms in groups for arm in arms), default=0)
    shown = f"{len(fullest)} arms" if len(fullest) > 1 else "1 arm"
    learning = sum(arm.learning for arm in fullest)
    learned = [Part(shown, "learning", learning)] if learning else []
    return [*weights, Part(shown, "caches", shared(fullest)), *learned, Part("a pass", "working memory", working)]


def total(some: Iterable[Part]) -> int:
    return sum(part.size for part in some)


@dataclass(frozen=True)
class Demand:
    """What a run takes on its device, what its host needs while weights are read, and what other settings would
    take, by their names. cells: bytes of every cell with its baseline and without the others, by its key."""

    parts: Sequence[Part]
    loading: int
    others: Mapping[str, Sequence[Part]]
    cells: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """A demand and the bytes that are free on the device and its host, None
    where nobody knows. used: what this process holds of the device already."""

    device: str
    demand: Demand
    free: int | None
    host: int | None
    used: int = 0

    @property
    def total(self) -> int:
        return total(self.demand.parts)

    @property
    def fits(self) -> bool:
        return self.holds(self.total) and (self.host is None or self.demand.loading <= self.host)

    def holds(self, size: int) -> bool:
        return self.free is None or size <= self.free

    @property
    def share(self) -> float:
        """The part of what is free that is taken; 0 where nobody knows what is free."""
        return self.total / self.free if self.free else 0.0

    @property
    def advice(self) -> str:
        """Other settings that fit, as a part of a sentence; or how far they are from fitting."""
        sizes = {name: total(some) for name, some in self.demand.others.items()}
        if fitting := [f"{name} takes {gigabytes(size)}" for name, size in sizes.items() if self.holds(size)]:
            return "; or ".join(fitting)
        tried = "".join(f"; even with {name} it is {gigabytes(size)}" for name, size in sizes.items())
        return f"choose a smaller pair or a larger machine{tried}"

    @property
    def refusal(self) -> str:
        """Why it does not fit and what would, in one line."""
        if self.holds(self.total):
            return (
                f"reading the weights takes about {gigabytes(self.demand.loading)} of the host's memory, of which "
                f"{gigabytes(self.host or 0)} are free: end what else runs there"
            )
        listed = ", ".join(f"{part.role} {part.kind} {gigabytes(part.size)}" for part in self.demand.parts)
        return (
            f"this takes about {gigabytes(self.total)} of the memory of {self.device}, and {gigabytes(self.free or 0)} "
            f"are free ({listed}): {self.advice}"
        )
