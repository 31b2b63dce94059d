"""Method files proven: every outcome that a method can have over small table models, against its target alone.

Knows method files and tables; must not know networks. A proof is of the code that runs here and now, the very parts
that decode with real models; what it cannot see is a wrong cache, because tables have none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from specbench.decoding.build import build
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import needs, read_method
from specbench.decoding.proofs.exact import ENUMERABLE, block_error, outcomes_of, sequence_error
from specbench.decoding.proofs.tables import KINDS, TableModel, random_pair, table_without
from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection

LENGTH = 4  # tokens of whole sequences; tables hold a row for every prefix of so many
SIZES = ((2, 1), (2, 2), (2, 3), (3, 1), (3, 2))  # (width of the vocabulary, K)
ENDS: tuple[tuple[int, ...], ...] = ((), (1,))  # without an end token, and with one


@dataclass(frozen=True)
class Proof:
    """The worst error of any probability of a joint outcome; sizes: how many (vocabulary, K) were enumerated."""

    error: float
    sizes: int


def table_models(name: str, seed: int, vocab: int, length: int = LENGTH) -> dict[str, TableModel]:
    """A table for every model that a method file mentions; the target is called target."""
    p, q = random_pair(seed, vocab, length)
    others = sorted(needs(name) - {"target"})
    tables = {other: q.roll(row, 0) for row, other in enumerate(others)}
    return {"target": TableModel(p), **{other: TableModel(table_of(other, one)) for other, one in tables.items()}}


def table_of(name: str, table: Tensor) -> Tensor:
    """The table of a model; of one with a part of its vocabulary, what is left without the last token."""
    return table if " vocabulary " not in name else table_without(table, table.shape[1] - 1)


def affordable(name: str, vocab: int, k: int) -> bool:
    """Whether the outcomes of one round of a method can be enumerated."""
    return outcomes_of(build(name, table_models(name, 0, vocab), k).drafter, vocab) <= ENUMERABLE


def method_error(name: str, vocab: int, k: int, eos: tuple[int, ...]) -> float:
    """The worst error over all kinds of pairs: of whole sequences over several rounds; of a tree, which has too many
    outcomes for that, of all tokens of one round."""
    found = []
    for seed in range(len(KINDS)):
        models = table_models(name, seed, vocab)
        method, table = build(name, models, k), models["target"].table
        whole = method.drafter.room <= k
        found.append(
            sequence_error(method, table, LENGTH, eos=eos) if whole else block_error(method, table, k + 1, eos=eos)
        )
    return max(found)


def prove(name: str, sizes: Iterable[tuple[int, int]] = SIZES) -> Proof:
    """A method file, shipped or one's own, at every size that can be enumerated; UsageError if it is wrong."""
    chosen = [(vocab, k) for vocab, k in sizes if affordable(name, vocab, k)]
    errors = [method_error(name, vocab, k, eos) for vocab, k in chosen for eos in ENDS]
    return Proof(max(errors, default=float("nan")), len(chosen))


def said_lossless(name: str) -> bool:
    """What a method file says of itself."""
    return bool(read_method(name)["lossless"])


@dataclass(frozen=True, eq=False)
class Misreporting(TableModel):
    """A draft that draws from its table and says that it drew from another one."""

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(context, k, rng, refeed, after)
        return ids, rows.flip(-1)


def control_error(vocab: int = 3, k: int = 2) -> float:
    """The error of a method that is broken on purpose: a proof that does not see it proves nothing."""
    p, q = random_pair(KINDS.index("dense"), vocab, LENGTH)
    broken = Speculate(ModelDrafter(Misreporting(q), k), TableModel(p), Rejection())
    return sequence_error(broken, p, LENGTH)
