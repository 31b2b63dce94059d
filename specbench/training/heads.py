"""The training of a head on a batch, its drafts during training, and its evaluation on held-out text.

It reads the hidden states of the frozen target, and learns the target's distributions there, on its known tokens. A
student is a module around the drafting network: from features [B, T, A·H] of positions 0 to T − 1, ids [B, T] of the
tokens after them and places [B, T] of the learned ones it gives, for each k of `steps`, logits [n, V'] of the learned
positions that have k before them, row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from specbench.decoding.divergences import Divergence, ForwardKL, divergence
from specbench.decoding.types import point_mass
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.taps import listening
from specbench.models.network.passes import additive
from specbench.models.network.sampling import Sampling, known_alone
from specbench.training.cache import TokenCache
from specbench.training.evaluation import Along, Figures, accepted, figures_of, held_out, sampled
from specbench.training.learner import Batch
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher, headed


class Unrolled(nn.Module):
    """An EAGLE-3 head or an MTP module that continues from its own states (training-time test:
    Li et al. 2025, arXiv 2503.01840, §3.2).

    At position t, pass k feeds the output of pass k − 1 at position t − 1. It attends to the same keys as in
    drafting: the true pairs up to position t − k, and in every pass between the one pair of its own chain.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, head.dtype = head, torch.float32
        self.eager = head.config._attn_implementation == "eager"  # layers may support no other
        if not self.eager:
            head.config._attn_implementation = "sdpa"  # the target's may not support masks of several passes

    @property
    def config(self) -> Any:
        return self.head.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        states, cache = self.head.enter(features.float()), DynamicCache()
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        found = []
        for step in range(steps):
            seen = chains(ids.shape[1], step, ids.device)
            mask = additive(seen, torch.float32) if self.eager else seen
            _, states = self.head(ids, states, positions, mask, cache, keep=1)
            found.append(self.head.judged(states[reached(places, step)]))
            states = later(states, 1)
        return found


class Beside(nn.Module):
    """Medusa heads: draft k is that of head k at the position k before."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, head.dtype = head, torch.float32

    @property
    def config(self) -> Any:
        return self.head.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        z = features.float()
        return [self.head.row(step, later(z, step)[reached(places, step)])[0] for step in range(steps)]


class Masked(nn.Module):
    """A network that continues through masks (PARD: An et al. 2025, arXiv 2504.18583, §3.2), instead of its features.

    Draft k of a round is the row of its k-th mask, which attends to the text up to the round's beginning
    and the masks before it. The passes are those of `Unrolled`, so that every position is learned at
    every depth and no mask is dropped. `features` [B, T, 1] are the tokens of the positions themselves.
    """

    def __init__(self, network: Any, mask: int) -> None:
        super().__init__()
        self.network, self.mask = network, mask
        network.set_attn_implementation("sdpa")

    @property
    def config(self) -> Any:
        return self.network.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        text, cache, output = torch.cat([features[:, :1, 0], ids], 1), DynamicCache(), Borrowed(self.network)
        positions = torch.arange(text.shape[1], device=ids.device).expand_as(text)
        found = []
        for step in range(steps):
            states = self.network.get_decoder()(
                input_ids=torch.full_like(text, self.mask) if step else text,
                position_ids=positions,
                attention_mask=chains(text.shape[1], step, ids.device).expand(len(text), -1, -1, -1),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            found.append(output.logits(states[:, 1:][reached(places, step)]))
        return found


def later(states: Tensor, step: int) -> Tensor:
    """[B, T, W] the states shifted by `step` positions; zeros where missing."""
    return F.pad(states, (0, 0, step, 0))[:, : states.shape[1]]


def reached(places: Tensor, step: int) -> Tensor:
    """Those of places [B, T] that can be draft number `step`, from 0, of a round."""
    return places & (torch.arange(places.shape[1], device=places.device) >= step)


def chains(length: int, step: int, device: torch.device) -> Tensor:
    """[1, 1, T, (step + 1)·T] the mask of the queries of pass `step` over the keys of all passes so far:
    of true pairs those up to the beginning of their round, of pass j the pair that is its j-th draft."""
    query = torch.arange(length, device=device).unsqueeze(1)
    key = torch.arange(length, device=device)
    true = key <= query - step
    drafted = [key == query - step + number for number in range(1, step + 1)]
    return torch.cat([true, *drafted], 1)[None, None]


WEIGHT = 0.8  # of a draft relative to the one before it (Medusa, §3.1; EAGLE-3's own code)
TEXT = "cross-entropy"


@dataclass(frozen=True)
class Read:
    """A batch as read by a target: the input of a student, and for the n learned positions
    the target's last hidden states [n, H] and the tokens [n]."""

    features: Tensor
    ids: Tensor
    places: Tensor
    states: Tensor
    tokens: Tensor

    @property
    def at(self) -> Tensor:
        """[n] the number of positions before each of the learned ones."""
        return self.places.nonzero()[:, 1]


class HeadLesson:
    """The loss and evaluation of heads that read these taps of a teacher, in `steps` drafts.
    Without taps their input is the tokens themselves.

    The held-out text is read once and kept.
    """

    def __init__(
        self, teacher: Teacher, taps: Sequence[int | str], cache: TokenCache, recipe: Recipe, steps: int
    ) -> None:
        self.teacher, self.taps, self.recipe, self.steps = teacher, tuple(taps), recipe, steps
        self.sampled, self.batches = sampled(cache, recipe), held_out(cache, recipe, teacher.device)
        self.held_out: list[tuple[Read, Tensor | None]] = []  # with a greedy teacher's tokens

    # --- learning -----------------------------------------------------------------------------------------------------

    def loss(self, student: Any, batch: Batch, done: float) -> Tensor:
        """The mean over drafts, each with 0.8 times the weight of the one before, at a share of the run from 0 to 1."""
        read = self.read(batch)
        if not len(read.states):  # a text too short for a draft
            return torch.stack([weight.sum() * 0.0 for weight in student.parameters()]).sum()
        name = self.recipe.loss(done)
        if name == TEXT:
            probs = point_mass(read.tokens, self.teacher.width, torch.float32)
        else:
            probs = self.rows(read, Sampling(self.recipe.temperature or 1.0))
        with known_alone(student) as known:
            drafts = student(read.features, read.ids, read.places, self.steps)
        rows, mass = renormalised(probs if known is None else probs.index_select(-1, known))
        apart = ForwardKL() if name == TEXT else divergence(name, self.recipe.beta)
        return weighted(drafts, rows, mass, read.at, apart)

    def rows(self, read: Read, sampling: Sampling) -> Tensor:
        """[n, V] the teacher's distributions at the learned positions."""
        return sampling(headed(self.teacher.network, read.states), self.teacher.width)

    @torch.no_grad()
    def read(self, batch: Batch) -> Read:
        """One pass of the teacher's layers."""
        network = self.teacher.network
        with listening(network, [tap for tap in self.taps if tap != "z"]) as heard:
            z: Tensor = network.get_decoder()(input_ids=batch.fed, use_cache=False).last_hidden_state
        seen = [z if tap == "z" else heard[tap] for tap in self.taps]
        rows = torch.cat(seen, -1) if seen else batch.fed.unsqueeze(-1)
        places = batch.learned[:, 1:]
        return Read(rows[:, :-1], batch.fed[:, 1:], places, z[:, 1:][places], batch.ids[:, 2:][places])

    # --- judging ------------------------------------------------------------------------------------------------------

    def figures(self, student: Any) -> tuple[Figures, dict[str, Figures]]:
        """The figures over all held-out text, and by category: α of the first draft, and tokens per round."""
        return figures_of(self.sequences(student), self.recipe.k)

    @torch.no_grad()
    def sequences(self, student: Any) -> list[Along]:
        """The results for every sequence, always in the same order."""
        sampling = Sampling(self.recipe.temperature)
        if not self.held_out:
            reads = [self.read(batch) for batch in self.batches]
            self.held_out = [(one, self.rows(one, sampling).argmax(-1) if sampling.certain else None) for one in reads]
        found = list[Along]()
        for batch, (read, best) in zip(self.batches, self.held_out, strict=True):
            if len(read.states):
                p = self.rows(read, sampling) if best is None else point_mass(best, self.teacher.width, torch.float32)
                found += self.along(student, batch, read, p)
        return found

    def along(self, student: Any, batch: Batch, read: Read, p: Tensor) -> list[Along]:
        """The sequences of a batch, with the teacher's rows p [n, V] at their positions."""
        with known_alone(student) as known:
            drafts = student(read.features, read.ids, read.places, self.recipe.k)
        sampling = Sampling(self.recipe.temperature)
        size = read.places.shape
        chance = torch.zeros(self.recipe.k, *size, dtype=torch.float64, device=p.device)
        first = torch.zeros(size, dtype=torch.float64, device=p.device)
        for step, logits in enumerate(drafts):
            some = read.at >= step
            q = whole(sampling, logits, known, self.teacher.width)
            drawn = self.sampled and bool(self.recipe.temperature)
            shared, alone = accepted(p[some], q, read.tokens[some], drawn)
            place = tuple(index[some] for index in read.places.nonzero(as_tuple=True))
            chance[step].index_put_(place, alone)
            if not step:
                first.index_put_(place, shared)
        parts = zip(batch.examples, read.places.cpu(), first.cpu(), chance.cpu().unbind(1), strict=True)
        return [Along(example.category, *rest) for example, *rest in parts]


def renormalised(p: Tensor) -> tuple[Tensor, Tensor]:
    """p [n, N], the teacher on a head's known tokens, renormalised, and the mass [n] of each
    row: it is the row's weight, as a head learns nothing from tokens that it does not know."""
    mass = p.sum(-1)
    return p / mass.clamp_min(1e-9).unsqueeze(-1), mass


def weighted(drafts: Sequence[Tensor], rows: Tensor, mass: Tensor, at: Tensor, loss: Divergence) -> Tensor:
    """The loss of drafts [n_k, N] against the teacher's rows [n, N], those of positions with k before them (at [n])."""
    total, weights = rows.new_zeros(()), 0.0
    for step, logits in enumerate(drafts):
        some = at >= step
        each = loss(rows[some], logits.float()) * mass[some]
        total = total + WEIGHT**step * each.sum() / mass[some].sum().clamp_min(1e-9)
        weights += WEIGHT**step
    return total / weights


def whole(sampling: Sampling, logits: Tensor, known: Tensor | None, width: int) -> Tensor:
    """[n, V] the rows of logits [n, N] of the known tokens: the distribution when drafting (`reduced.proper_rows`)."""
    if known is None:
        return sampling(logits, width)
    rows = sampling(logits, len(known))
    return rows.new_zeros(len(rows), width).index_copy(-1, known, rows)
