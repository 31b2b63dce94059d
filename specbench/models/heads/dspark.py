"""What DSpark adds to DFlash (arXiv 2607.05147; DeepSpec, speculators): a correction of the logits by the token before,
and how sure the head is of a token.

The correction is W₂ W₁[token before], or gated by the state of the place, or made with a state that goes along the
block (speculators, `markov_head_type`: vanilla, gated, rnn). Knows the equations and the tensors; must not know how
the states of the places came about, or what is done with the rows.
"""

import torch
from torch import Tensor, nn

from specbench.errors import UnusableModelError
from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.head import Head
from specbench.models.heads.layers import linear, shape_of

MARKOV, OUTPUT = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
GATE, JOINT = "markov_head.gate_proj", "markov_head.joint_proj"
CONFIDENCE = "confidence_head.proj.weight"
NEEDED = {"gated": GATE, "rnn": JOINT}


class Markov(nn.Module):
    """What is added to logits for the tokens before: of the last one alone, or, with a joint projection, of all drafted
    ones through what every place carries on to the next. Names of the parts as in the files."""

    def __init__(self, head: Head, target: Borrowed, width: int) -> None:
        super().__init__()
        tokens, rank = shape_of(head, MARKOV)
        if tokens != target.vocabulary:
            raise UnusableModelError(
                f"{head.name}: {MARKOV} has {tokens:,} rows, and the target {target.vocabulary:,} tokens"
            )
        shape_of(head, OUTPUT)
        self.markov_w1 = nn.Embedding(tokens, rank, device="meta")
        self.markov_w2 = linear(head.tensors, "markov_head.markov_w2")
        self.gate_proj = projection(head, GATE, (rank, width + rank))
        self.joint_proj = projection(head, JOINT, (3 * rank, 2 * rank + width))

    def begin(self, skipped: Tensor, pending: Tensor) -> Tensor | None:
        """[B, r] what the first drafted place is given: nothing yet, or what the place of the pending token [B, 1]
        carries on where that drafts nothing itself (its state [B, 1, H]; else [B, 0, H]). None without a joint
        projection."""
        if self.joint_proj is None:
            return None
        carried = skipped.new_zeros(len(skipped), 1, self.markov_w1.embedding_dim)
        if skipped.shape[1]:
            carried = self._carry(skipped, self.markov_w1(pending), carried)[1]
        return carried[:, 0]

    def forward(self, states: Tensor, before: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """states [B, m, H], the tokens before [B, m] and what the places before carried on [B, m, r] → [B, m, N], and
        what these carry on."""
        known = self.markov_w1(before)
        if carried is not None:
            known, carried = self._carry(states, known, carried)
        elif self.gate_proj is not None:
            known = known * self.gate_proj(torch.cat([states, known], -1)).sigmoid()
        return self.markov_w2(known), carried

    def _carry(self, states: Tensor, known: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        assert self.joint_proj is not None
        gate, candidate, output = self.joint_proj(torch.cat([carried, known, states], -1)).chunk(3, -1)
        kept = gate.sigmoid()
        return output.tanh(), kept * carried + (1 - kept) * candidate.tanh()


def markov_of(head: Head, target: Borrowed, width: int) -> Markov | None:
    """The correction in a head's files, if any. UnusableModelError: a part that config.json names is missing."""
    if MARKOV not in head.tensors:
        return None
    said = head.config.get("markov_head_type")
    if said in NEEDED:
        shape_of(head, f"{NEEDED[said]}.weight")
    return Markov(head, target, width)


def confidence_of(head: Head, markov: Markov | None, width: int) -> "Confidence | None":
    return Confidence(head, markov, width) if CONFIDENCE in head.tensors else None


def projection(head: Head, name: str, shape: tuple[int, int]) -> nn.Linear | None:
    if f"{name}.weight" not in head.tensors:
        return None
    found = shape_of(head, f"{name}.weight")
    if tuple(found) != shape:
        raise UnusableModelError(
            f"{head.name}: weights do not fit config.json: {name}.weight is {list(found)}, not {list(shape)}"
        )
    return linear(head.tensors, name)


class Confidence(nn.Module):
    """How likely a token is accepted, by the state of its place and, in heads trained so, W₁[token before]."""

    def __init__(self, head: Head, markov: Markov | None, width: int) -> None:
        super().__init__()
        self.proj = linear(head.tensors, "confidence_head.proj")
        rank = 0 if markov is None else markov.markov_w1.embedding_dim
        self.reads_token = rank > 0 and self.proj.in_features == width + rank
        if self.proj.out_features != 1 or not (self.reads_token or self.proj.in_features == width):
            raise UnusableModelError(
                f"{head.name}: weights do not fit config.json: {CONFIDENCE} is {list(self.proj.weight.shape)}, and "
                f"states are {width} wide"
            )

    def forward(self, states: Tensor, known: Tensor | None) -> Tensor:
        """states [B, m, H] and W₁ of the tokens before [B, m, r] → [B, m]."""
        if self.reads_token and known is not None:
            states = torch.cat([states, known], -1)
        chance: Tensor = self.proj(states).squeeze(-1).float().sigmoid()
        return chance
