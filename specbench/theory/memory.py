"""The memory of decoding, in bytes from sizes alone, without the allocator's reserve."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from specbench.wording import gigabytes, grouped

Kind = Literal["weights", "packed weights", "caches", "learning", "working memory"]
UPCAST = 4  # bytes of a number if a pass computes in float32 whatever the weights are
ROWS = 4  # float32 copies of a row of logits per verdict: scores, p or q, the residual, its sum


@dataclass(frozen=True)
class Network:
    """The sizes of a network: bytes of its weights, and the host's peak bytes while they are read.

    kept: numbers cached per token and layer, keys and values together. inner: the widest activation of a layer.
    heads: of queries; `groups` of them share a key. scored: whether attention holds all its scores. masked: types
    of layer with separate masks. item: bytes of a number. packed: bytes of the weights that compiled rounds read.
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
        """The network with this many of its layers, on its weights."""
        return replace(self, layers=layers, weights=0, packed=0)

    def cache(self, length: int, rows: int) -> int:
        """The bytes of a static cache of `length` slots."""
        return self.layers * self.kept * length * rows * self.item

    def learning(self, rows: int, vocabulary: int) -> int:
        """A copy that drafts, one in float32 if that is wider, gradients, two moments and a
        copy to restore, and `rows` rows of a vocabulary in 16 bits."""
        wide = max(self.item, UPCAST)
        numbers = self.weights // self.item
        return numbers * (self.item + 4 * wide + (wide if wide > self.item else 0)) + 2 * rows * vocabulary

    def prefill(self, prompt: int, length: int, rows: int) -> int:
        """The peak bytes of a pass over the prompts, in its widest layer."""
        mlp = 2 * self.hidden * (self.item + UPCAST) + 3 * self.inner * self.item
        scores = self.heads * length * (2 * self.item + UPCAST) if self.scored else 0
        masks = self.masked * self.groups * length * (self.item + 1)
        return rows * (prompt * (mlp + scores + masks) + self.vocabulary * (self.item + ROWS * UPCAST))

    def round(self, nodes: int, rows: int) -> int:
        """The rows of logits of a round: those of the verified tokens and of the drafted ones."""
        return rows * (2 * nodes + 1) * self.vocabulary * (self.item + ROWS * UPCAST)


@dataclass(frozen=True)
class Part:
    """The bytes of one role for one purpose."""

    role: str
    kind: Kind
    size: int


@dataclass(frozen=True)
class Arm:
    """A method that is ready: the networks that have caches, the slots of each, the nodes of a
    round, and the bytes of drafts that learn."""

    networks: Sequence[Network]
    prompt: int
    length: int
    nodes: int
    rows: int
    learning: int = 0

    @property
    def sizes(self) -> list[int]:
        return [network.cache(self.length, self.rows) for network in self.networks]

    @property
    def caches(self) -> int:
        return sum(self.sizes)

    @property
    def working(self) -> int:
        """The working memory of its largest pass; a refilled row is prefilled with separate caches."""
        admitted = self.caches // self.rows if self.rows > 1 else 0
        passes = [n.prefill(self.prompt, self.length, self.rows) for n in self.networks]
        return admitted + max([*passes, *(n.round(self.nodes, self.rows) for n in self.networks)])


def shared(arms: Iterable[Arm]) -> int:
    """Bytes of the caches of arms that never run at once: with as many rows, the n-th cache of each is one memory."""
    by_rows = grouped(arms, lambda arm: arm.rows)
    return sum(max(sizes) for some in by_rows for sizes in zip_longest(*(arm.sizes for arm in some), fillvalue=0))


def parts(roles: Mapping[str, Network], groups: Sequence[Sequence[Arm]]) -> list[Part]:
    """The peak of a run: all weights, and the group of arms whose caches and learning take the most."""
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
    """The demand of a run on its device, the need of its host while weights are read, and the demand with other
    settings, by their names, computed when it is wanted. cells: bytes of every cell with its baseline and
    without the others, by its key. place: the memory that another process takes it from, and its free bytes."""

    parts: Sequence[Part]
    loading: int
    others: Callable[[], Mapping[str, Sequence[Part]]] = dict
    cells: Mapping[str, int] = field(default_factory=dict)
    place: tuple[str, int | None] | None = None


@dataclass(frozen=True)
class Fit:
    """A demand and the free bytes of the device and its host, None if unknown. used: this
    process's present bytes on the device."""

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
        """The share of the free memory that is needed; 0 if unknown."""
        return self.total / self.free if self.free else 0.0

    @property
    def advice(self) -> str:
        """Other settings that fit, as a part of a sentence; or how far they are from fitting."""
        sizes = {name: total(some) for name, some in self.demand.others().items()}
        if fitting := [f"{name} takes {gigabytes(size)}" for name, size in sizes.items() if self.holds(size)]:
            return "; or ".join(fitting)
        tried = "".join(f"; even with {name} it is {gigabytes(size)}" for name, size in sizes.items())
        return f"choose a smaller pair or a larger machine{tried}"

    @property
    def refusal(self) -> str:
        """Why it does not fit and which settings would, in one line."""
        if self.holds(self.total):
            return (
                f"reading the weights takes about {gigabytes(self.demand.loading)} of the host's memory, and "
                f"{gigabytes(self.host or 0)} are free: end other programs there"
            )
        listed = ", ".join(f"{part.role} {part.kind} {gigabytes(part.size)}" for part in self.demand.parts)
        return (
            f"this takes about {gigabytes(self.total)} of the memory of {self.device}, and {gigabytes(self.free or 0)} "
            f"are free ({listed}): {self.advice}"
        )
