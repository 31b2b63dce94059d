"""Two tokenizers at once: the tokens common to their vocabularies, and a text in both, aligned by bytes.

Two rules join any two tokenizers without loss (Timor et al. 2025, arXiv 2502.05202): the draft draws only common
tokens, or its text is re-tokenised with the target's tokenizer. Only the end of a text is split again, from a position
some tokens before the new ones where both tokenizers begin a word; so the host's work does not grow with the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, takewhile
from typing import Literal

import torch

from specbench.decoding.protocols import STRETCH, Dictionary, Reading, alike
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints.tokenizers import Spelling

Rule = Literal["common", "strings"]
USEFUL = 0.5  # of either vocabulary: with fewer common tokens a draft can express too little


@dataclass(frozen=True, eq=False)
class Vocabularies:
    """Two tokenizers, and the widths of the heads, which bound valid ids. `name` is the draft's
    role, `wanted` the requested rule."""

    target: Spelling
    draft: Spelling
    target_width: int
    draft_width: int
    name: str = "draft"
    wanted: Literal["auto", "common", "strings"] = "auto"

    @cached_property
    def words(self) -> list[tuple[int, int]]:
        """(target's id, draft's id) of every common token that is text; each id occurs once."""
        pairs = [(ours, self.draft.ids[text]) for text, ours in self.target.ids.items() if text in self.draft.ids]
        return [pair for pair in sorted(pairs) if pair[0] < self.target_width and pair[1] < self.draft_width]

    @cached_property
    def common(self) -> list[tuple[int, int]]:
        """The same with special tokens of equal meaning; empty if no text is common."""
        marks = [(ours, theirs) for theirs, ours in self.specials.items()]
        fit = [pair for pair in marks if pair[0] < self.target_width and pair[1] < self.draft_width]
        return sorted({*self.words, *fit}) if self.words else []

    @cached_property
    def specials(self) -> dict[int, int]:
        """The target's special tokens by the draft's: those of the same name, and those that end a text."""
        named = {content: number for number, content in self.target.special.items()}
        found = {number: named[content] for number, content in self.draft.special.items() if content in named}
        ends = self.draft.tokenizer.eos_token_id, self.target.tokenizer.eos_token_id
        if None not in ends and ends[0] not in found and ends[1] not in found.values():
            found[ends[0]] = ends[1]
        return found

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the target's and of the draft's vocabulary that are common."""
        sizes = [max(len(one.tokens) + len(one.special), 1) for one in (self.target, self.draft)]
        return len(self.common) / sizes[0], len(self.common) / sizes[1]

    @property
    def shared(self) -> str:
        """The common tokens, in words."""
        of_target, of_draft = self.shares
        count = f"{len(self.common):,} tokens are common"
        return f"{count}, {of_target:.1%} of the target's and {of_draft:.1%} of the {self.name}'s"

    @cached_property
    def writable(self) -> bool:
        """Whether the target's tokens can spell any token of the draft's."""
        texts = self.draft.ids
        return any(self.target.bytes_of(self.target.greedy(text)) == text for text in texts if text.strip())

    @cached_property
    def rule(self) -> Rule:
        """The requested rule, or the suitable one: common if enough tokens are. UnusableModelError if none is."""
        apart = f"target and {self.name} have different tokenizers"
        if not self.common and not self.writable:
            raise UnusableModelError(
                f"{apart}, without a token in common ({len(self.target.tokens)} and {len(self.draft.tokens)} tokens): "
                f"choose a {self.name} whose tokens spell the same texts, or a method without a draft model, such as "
                "prompt lookup"
            )
        if self.wanted == "common" and not self.common:
            raise UsageError(f"--vocabulary common: {apart}, without a token in common: use --vocabulary strings")
        if self.wanted == "strings" and not self.writable:
            raise UsageError(f"--vocabulary strings: {apart}, and no text of the {self.name} is one of the target's")
        if self.wanted != "auto":
            return self.wanted
        return "common" if max(self.shares) >= USEFUL or not self.writable else "strings"

    def special_ids(self, number: int) -> list[int]:
        """The draft's tokens for a special token of the target: its own of that meaning, or the letters of its name."""
        back = {ours: theirs for theirs, ours in self.specials.items()}
        if number in back:
            return [back[number]]
        starts = self.target.tokenizer.bos_token_id, self.draft.tokenizer.bos_token_id
        if number == starts[0] and starts[1] is not None:
            return [int(starts[1])]
        name = self.target.special.get(number, "").encode()
        return self.draft.fragment(name) or [self.draft.unknown]

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """The draft's tokens for a text in the target's tokens: split as its own tokenizer splits it."""
        found, first = self.starts(ids), True
        for part in parts(self.target, ids):
            found += self.own(part, first)
            first = False
        return found or [self.draft.unknown]

    def starts(self, ids: Sequence[int]) -> list[int]:
        """The prefix of the draft's tokenizer, unless the text begins with a token of the same meaning."""
        plain, around = self.draft.encode("a"), list(self.draft.tokenizer.encode("a"))
        before = around[: around.index(plain[0])] if plain and plain[0] in around else []
        said = self.special_ids(ids[0]) if ids and ids[0] in self.target.special else []
        return [] if said == before else before

    def own(self, part: Sequence[int], first: bool) -> list[int]:
        """The draft's tokens for a special token, or for tokens that are text; `first`: at the
        beginning of a text, where tokenizers may add a space."""
        text = b"".join(self.target.tokens.get(number, b"") for number in part)
        if part[0] in self.target.special:
            ids = self.special_ids(part[0])
        else:
            ids = self.draft.beginning(text.removeprefix(self.target.begins)) if first else self.draft.fragment(text)
        return [number if number < self.draft_width else self.draft.unknown for number in ids]

    def dictionary(self) -> Dictionary:
        """The dictionary for `Common`."""
        pieces = self.pieces()
        most = min(max(map(len, pieces), default=1), STRETCH)
        kept = [one[-most:] for one in pieces]
        back = {theirs: ours for ours, theirs in self.common}
        return Dictionary(
            ours=torch.tensor([ours for ours, _ in self.common]),
            theirs=torch.tensor([theirs for _, theirs in self.common]),
            pieces=torch.tensor([[*one, *[0] * (most - len(one))] for one in kept]),
            lengths=torch.tensor([len(one) for one in kept]),
            back=torch.tensor([back.get(number, 0) for number in range(self.draft_width)]),
            prompt=self.prompt,
        )

    def pieces(self) -> list[list[int]]:
        """The draft's tokens for every id of the target's head."""
        found = {ours: [theirs] for ours, theirs in self.common}
        found |= {number: self.special_ids(number) for number in self.target.special if number not in found}
        rest = [number for number in self.target.tokens if number not in found]
        found |= dict(zip(rest, self.draft.fragments([self.target.tokens[n] for n in rest]), strict=True))
        unknown = [self.draft.unknown]
        return [
            [n if n < self.draft_width else self.draft.unknown for n in found.get(number) or unknown]
            for number in range(self.target_width)
        ]


def parts(spelling: Spelling, ids: Sequence[int]) -> Iterator[list[int]]:
    """A text as separate special tokens, and the tokens between them."""
    for special, group in groupby(ids, lambda number: number in spelling.special):
        some = list(group)
        yield from ([number] for number in some) if special else [some]


BEHIND = 8  # tokens of the target before the new ones: later text may split them differently
FAR = 64  # tokens after which any position is used, if the text has no words
CHARACTER = 4  # maximum bytes


class Rewriter:
    """The scribe of two vocabularies."""

    def __init__(self, vocabularies: Vocabularies) -> None:
        self.both = vocabularies
        self.target, self.draft = vocabularies.target, vocabularies.draft

    def read(self, text: Sequence[int], before: Reading | None = None) -> Reading:
        """See `Scribe`. A special token of the target is read as the draft's own, or as the letters of its name."""
        same = alike(before.text, text) if before else 0
        if before is None or (joint := self.joint(before, same - BEHIND)) == (0, 0):
            return self._whole(text)
        place, own = joint
        ids, joints = self._rendered(text[place:], first=False)
        kept = [one for one in before.joints if one < joint]
        return Reading([*text], before.ids[:own] + ids, (*kept, *((place + a, own + b) for a, b in joints)))

    def write(self, reading: Reading, drafted: Sequence[int]) -> list[int]:
        """See `Scribe`. Bytes of an incomplete character are dropped, and a special token ends the chain."""
        text = reading.text
        start = self.joint(reading, len(text) - BEHIND)[0]
        marks = [place for place in range(start, len(text)) if text[place] in self.target.special]
        start = marks[-1] + 1 if marks else start
        known = b"".join(self.target.tokens.get(number, b"") for number in text[start:])
        said = list(takewhile(lambda number: number in self.draft.tokens, drafted))
        more = b"".join(self.draft.tokens[number] for number in said)
        end = self.both.specials.get(drafted[len(said)]) if len(said) < len(drafted) else None
        ids = self._after(known, more if end is not None else complete(known, more))
        ids = [*ids, end] if end is not None else ids
        return list(takewhile(lambda number: number < self.both.target_width, ids))

    def joint(self, reading: Reading, most: int) -> tuple[int, int]:
        """The last joint before position `most` at which a word begins, or one far before it;
        else the beginning of the text."""
        found = (0, 0)
        for place, own in reversed(reading.joints):
            if place <= most:
                found = found if found != (0, 0) else (place, own)
                if self._word(reading.text, place):
                    return place, own
                if place < most - FAR:
                    return found
        return found

    def _word(self, text: Sequence[int], place: int) -> bool:
        """Whether a word begins at a position, or a special token precedes it."""
        begins = self.target.tokens.get(text[place], b" ") if place < len(text) else b""
        return begins[:1].isspace() or (place > 0 and text[place - 1] in self.target.special)

    def _whole(self, text: Sequence[int]) -> Reading:
        before = self.both.starts(text)
        ids, joints = self._rendered(text, first=True)
        joints = [(place, own + len(before)) for place, own in joints if place]
        return Reading([*text], [*before, *ids] or [self.draft.unknown], ((0, 0), *joints))

    def _rendered(self, text: Sequence[int], first: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """The draft's tokens of a part of a text, and the positions in both before which their texts are equal."""
        found: list[int] = []
        joints: list[tuple[int, int]] = []
        place = 0
        for part in parts(self.target, text):
            ids = self.both.own(part, first and place == 0)
            joints += [(place + a, len(found) + b) for a, b in boundaries(self.target, part, self.draft, ids)]
            found, place = found + ids, place + len(part)
        return found, joints

    def _after(self, known: bytes, more: bytes) -> list[int]:
        """The tokens of `more`, which follows `known`, whose tokens are fixed."""
        if not more:
            return []
        whole = known + more
        ids = self.target.fragment(whole)
        if self.target.bytes_of(ids) != whole:  # some bytes have no spelling: keep those before
            return list(takewhile(lambda number: number in self.target.tokens, self.target.greedy(more)))
        ends = list(accumulate(len(self.target.tokens[number]) for number in ids))
        if not known or len(known) in ends:
            return ids[ends.index(len(known)) + 1 if known else 0 :]
        # Together they would be one token. The known part is fixed, so the rest of that token becomes a separate one.
        over = next(number for number, end in enumerate(ends) if end > len(known))
        return self.target.fragment(whole[len(known) : ends[over]]) + ids[over + 1 :]


def boundaries(one: Spelling, text: Sequence[int], other: Spelling, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The positions before which two spellings of the same text agree, except at its end: equally
    many bytes remain after them. For special tokens, and if bytes differ, only the beginning."""
    ours, theirs = one.bytes_of(text), other.bytes_of(ids)
    yield 0, 0
    if ours is None or theirs is None or not ours.endswith(theirs.lstrip()):
        return
    left = dict(zip(remaining(other, ids), range(len(ids)), strict=True))
    for place, rest in enumerate(remaining(one, text)):
        if place and rest in left:
            yield place, left[rest]


def remaining(spelling: Spelling, ids: Sequence[int]) -> list[int]:
    """The number of bytes from every token on."""
    lengths = [len(spelling.tokens[number]) for number in ids]
    return [sum(lengths) - end + length for end, length in zip(accumulate(lengths), lengths, strict=True)]


def complete(known: bytes, more: bytes) -> bytes:
    """The draft's bytes, without an incomplete character at the end."""
    whole = known + more
    for size in range(1, min(CHARACTER, len(more) + 1)):
        lead = whole[-size]
        if lead & 0xC0 != 0x80:  # the first byte of a character
            needs = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
            return more[: len(more) - size] if needs > size else more
    return more
