"""One decode from the inside: the production loop, read after every round into the tokens of a view.

Acceptance is read from the verdict, never recomputed. Reading is slow, so nothing here is timed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specbench.decoding.decode import begin, steps
from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT
from specbench.decoding.types import packed, read_counts
from specbench.results.documents import Kind, TracedRound, TracedToken

WINDOW = 16  # preceding tokens decoded with a token, more than any character or word piece spans
UNFINISHED = "\ufffd"  # what tokenizers return for an incomplete character
BYTES = {char: byte for byte, char in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]  # byte-level


@torch.no_grad()
def trace(
    method: Speculate,
    prompt: Sequence[int],
    *,
    new: int,
    eos: Sequence[int],
    rng: Source,
    device: torch.device,
    tokenizer: Any,
) -> tuple[TracedRound, ...]:
    """The rounds in which `decode` with these arguments emits up to `new` tokens after the prompt.

    prompt: its ids, at least one. Raises NonFiniteError as `decode` does.
    """
    known, rounds = list(prompt), list[TracedRound]()
    context = begin([prompt], new, method.drafter.room, eos, device)
    for step in steps(method, context, new, rng):
        rounds.append(Reading(step, known, tokenizer).round())
        known += [t.id for t in rounds[-1].tokens if t.emitted]
    return tuple(rounds)


@dataclass(frozen=True)
class Reading:
    """The first row of a step, as tokens with their text after the tokens `known` before it."""

    step: Step
    known: Sequence[int]
    tokenizer: Any

    def round(self) -> TracedRound:
        (counts, *_) = read_counts(packed(self.step.round))
        levels = list(self._levels(counts.emitted))
        tested = {node for node, _ in levels}
        end = next((node for node, kind in reversed(levels) if kind == "accepted"), ROOT)
        missed = levels[-1][0] if levels and levels[-1][1] == "rejected" else None
        tokens = [self._drafted(node, kind) for node, kind in levels]
        tokens += [self._drafted(node, "unused") for node in self._nodes() if node not in tested]
        if counts.emitted > counts.accepted:
            tokens.append(self._drawn(end, missed))
        return TracedRound(tuple(tokens), counts)

    def _levels(self, emitted: int) -> Iterator[tuple[int, Kind]]:
        """The nodes tested up to the last emitted token: siblings in order, up to the accepted one."""
        path, parent = self.step.verdict.path[0].tolist(), ROOT
        for level in range(min(emitted, len(path))):
            for node in (n for n in self._nodes() if self._parent(n) == parent):
                if node == path[level]:
                    break
                yield node, "rejected"
            if path[level] < 0:
                return
            yield path[level], "accepted"
            parent = path[level]

    def _nodes(self) -> list[int]:
        draft = self.step.draft
        there = [True] * draft.tree.size if draft.valid is None else draft.valid[0].tolist()
        return [node for node, exists in enumerate(there) if exists]

    def _parent(self, node: int) -> int:
        return self.step.draft.tree.parents[node]

    def _drafted(self, node: int, kind: Kind) -> TracedToken:
        return self._token(kind, self._id(node), self._parent(node), node)

    def _drawn(self, end: int, missed: int | None) -> TracedToken:
        """The token that the model drew after node `end`, where it rejected the draft `missed`, if any."""
        kind: Kind = "bonus" if missed is None else "correction"
        return self._token(kind, int(self.step.verdict.token[0]), end, missed)

    def _token(self, kind: Kind, token: int, parent: int, drafted: int | None) -> TracedToken:
        text, partial = spelled(self.tokenizer, [*self.known, *self._path(parent)], token)
        p = float(self.step.p[0, parent + 1, token])
        return TracedToken(kind, token, text, partial, p, self._q(token, drafted))

    def _q(self, token: int, node: int | None) -> float | None:
        """A token's probability in the distribution that `node` was drawn from; a point mass if there is none."""
        if node is None:
            return None
        q = self.step.draft.q
        return float(token == self._id(node)) if q is None else float(q[0, node, token])

    def _id(self, node: int) -> int:
        return int(self.step.draft.tree.ids[0, node])

    def _path(self, node: int) -> list[int]:
        """The ids from the root's child down to `node`."""
        return [] if node == ROOT else [*self._path(self._parent(node)), self._id(node)]


def spelled(tokenizer: Any, before: Sequence[int], token: int) -> tuple[str, str]:
    """The text that a token adds, and its bytes if it ends inside a character.

    Texts are compared, not tokens: a leading space or a character of several tokens appears only in context.
    """
    window = list(before[-WINDOW:])
    old = _decoded(tokenizer, window).rstrip(UNFINISHED)
    grown = _decoded(tokenizer, [*window, token])
    whole = grown.rstrip(UNFINISHED)
    text = whole[len(old) :] if whole.startswith(old) else _decoded(tokenizer, [token])
    if whole == grown:
        return text, ""
    return text, bytes_of(tokenizer, token).removeprefix(text.encode()).hex(" ").upper()


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def bytes_of(tokenizer: Any, token: int) -> bytes:
    """The bytes of one token, for byte-level tokenizers and for byte tokens (<0xE2>) of others."""
    piece = str(tokenizer.convert_ids_to_tokens(token))
    if found := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(found[1])
    return bytes(BYTES[c] for c in piece) if set(piece) <= BYTES.keys() else piece.encode()
