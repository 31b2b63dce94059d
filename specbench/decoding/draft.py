"""Drafters without a tree: none, and a chain from a model. They know the algebra, not the models' insides."""

from dataclasses import dataclass

from torch import Tensor

from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft, Model, Verdict
from specbench.tokens import TokenTree


@dataclass(frozen=True)
class NoDraft:
    """Proposes nothing: with it the loop is autoregressive decoding."""

    @property
    def room(self) -> int:
        return 0

    def start(self, context: Context) -> None:
        return

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        return Draft(TokenTree.chain(context.seq.new_zeros((context.rows, 0))))

    def learn(self, context: Context, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        return


@dataclass(frozen=True)
class ModelDrafter:
    """A chain of k tokens drawn one after the other from a smaller model (Leviathan et al. 2022, Alg. 1)."""

    model: Model
    k: int

    @property
    def room(self) -> int:
        return self.k

    def start(self, context: Context) -> None:
        self.model.start(context)

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        k = min(self.k, budget)
        if k < 1:
            return NoDraft().propose(context, budget, rng)
        ids, rows = self.model.sample(context, k, rng, lag)
        return Draft(TokenTree.chain(ids), rows)

    def learn(self, context: Context, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        self.model.select(rows)
