"""Heads with a reduced vocabulary: their storage, and the choice of the tokens that a draft keeps.

Stored as in EAGLE-3: lm_head.weight [N, H]; d2t [N] int64, offsets, so that row i is the token i +
d2t[i]; t2d [V] bool, the mask of known tokens, which is optional. The tokens are the most frequent
ones of some text, as in FR-Spec (Zhao et al. 2025, arXiv 2502.14856, §3): nothing is trained.
"""

import copy
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UnusableModelError, UsageError
from specbench.files import ASSETS, read_whole
from specbench.models.network.sampling import SIZE, ReducedHead, put
from specbench.wording import first_line

WEIGHT, OFFSETS, MASK = "lm_head.weight", "d2t", "t2d"
ALSO = "embed_out.weight"  # transformers' name for the head of GPT-NeoX
UNREADABLE = "a head with a vocabulary of its own is read from plain safetensors, and onto one device"


def size_of(config: Any) -> int | None:
    """The number of tokens that a head with this configuration knows; None if it knows all."""
    size: int | None = getattr(config, SIZE, None)
    return size


def label(config: Any) -> str:
    """The description of such a head in results; empty for any other."""
    size = size_of(config)
    return f"{size:,} of {config.get_text_config(decoder=True).vocab_size:,} tokens" if size is not None else ""


def without(config: Any) -> Any:
    """The configuration of the network without such a head: its head takes no memory."""
    plain = copy.deepcopy(config)
    plain.tie_word_embeddings = plain.get_text_config(decoder=True).tie_word_embeddings = True
    return plain


@dataclass(frozen=True)
class Taken:
    """A head taken from the weights of the checkpoint `name`: its rows, and the ids of their tokens."""

    name: str
    weight: Tensor
    ids: Tensor
    width: int

    def put_into(self, model: Any, info: dict[str, Any]) -> None:
        """Replace the network's original head, which has no weights, by this one."""
        head = model.get_output_embeddings()
        if self.weight.shape[1] != head.weight.shape[1]:
            raise UnusableModelError(f"{self.name}: its reduced head is {list(self.weight.shape)}, and the network is "
                                     f"{head.weight.shape[1]} wide")  # fmt: skip
        info["missing_keys"] -= {f"{name}.weight" for name, part in model.named_modules() if part is head}
        weight = self.weight.to(head.weight)
        put(model, ReducedHead(weight, self.ids.to(weight.device), self.width))


def take(name: str, config: Any, weights: dict[str, Any]) -> Taken | None:
    """Take the reduced head out of some weights; None if the configuration declares none.

    UnusableModelError if its tensors are missing or do not fit each other, before any other is read.
    """
    if size_of(config) is None:
        return None
    own = ALSO if ALSO in weights else WEIGHT
    if absent := [tensor for tensor in (OFFSETS, own) if tensor not in weights]:
        raise UnusableModelError(f"{name}: {SIZE} is {size_of(config)}, and its weights have no {absent[0]}")
    offsets, mask = weights.pop(OFFSETS)[...], weights.pop(MASK, None)
    width = config.get_text_config(decoder=True).vocab_size
    refuse_wrong(name, offsets, mask, size_of(config), width)
    weight = weights.pop(own)[...]
    if weight.ndim != 2 or len(weight) != len(offsets):
        raise UnusableModelError(f"{name}: {own} is {list(weight.shape)}, and {SIZE} is {len(offsets)}")
    return Taken(name, weight, tokens(offsets), width)


def tokens(offsets: Tensor) -> Tensor:
    """The ids of the tokens that a head knows."""
    return offsets.long() + torch.arange(len(offsets), device=offsets.device)


def refuse_wrong(name: str, offsets: Tensor, mask: Any, size: int | None, width: int) -> None:
    """UnusableModelError for a checkpoint of this name with a wrong d2t or t2d."""
    known, reason = None if mask is None else mask[...], ""
    if offsets.ndim != 1 or offsets.is_floating_point() or len(offsets) != size:
        kind = str(offsets.dtype).removeprefix("torch.")
        reason = f"{OFFSETS} is {list(offsets.shape)} of {kind}, and {SIZE} is {size}"
    elif bool(((ids := tokens(offsets)).diff() <= 0).any()):
        reason = f"the tokens of {OFFSETS} do not rise"
    elif int(ids[0]) < 0 or int(ids[-1]) >= width:
        reason = f"{OFFSETS} has the tokens {int(ids[0])} to {int(ids[-1])}, and the vocabulary has {width:,}"
    elif known is not None and (known.shape != (width,) or not torch.equal(known.bool().nonzero()[:, 0], ids)):
        reason = f"{OFFSETS} and {MASK} name other tokens"
    if reason:
        raise UnusableModelError(f"{name}: {reason}; a head's row i is the token i + {OFFSETS}[i]")


def hollow(net: Any, config: Any) -> Any:
    """A network of this configuration, without memory for its weights, with the declared head."""
    if (size := size_of(config)) is None:
        return net
    weight = net.get_output_embeddings().weight
    return put(net, ReducedHead(weight[:size], torch.empty(size, dtype=torch.long, device="meta"), len(weight)))


def stored(head: ReducedHead) -> dict[str, Tensor]:
    """The tensors of a head as stored in a checkpoint."""
    offsets = head.ids - torch.arange(len(head.ids), device=head.ids.device)
    mask = torch.zeros(head.width, dtype=torch.bool, device=head.ids.device).index_fill(0, head.ids, value=True)
    return {WEIGHT: head.weight.detach(), OFFSETS: offsets, MASK: mask}


def most_frequent(counts: Tensor, size: int, always: Collection[int] = ()) -> list[int]:
    """`size` ids in rising order: those of `always`, and the greatest of counts [V], the lower id first among equals.

    UsageError if that is impossible.
    """
    forced = sorted(set(always))
    if not len(forced) <= size <= len(counts) or size < 1:
        raise UsageError(
            f"a vocabulary of {size:,} tokens: it can have {max(len(forced), 1):,}, which are special tokens and "
            f"always kept, to {len(counts):,}, which are all"
        )
    if forced and (forced[0] < 0 or forced[-1] >= len(counts)):
        raise UsageError(
            f"the special token {forced[-1]} is not one of the {len(counts):,} tokens of the target's head"
        )
    order = counts.double().index_fill(0, torch.tensor(forced, dtype=torch.long), torch.inf)
    kept: list[int] = order.argsort(descending=True, stable=True)[:size].sort().values.tolist()
    return kept


def special_tokens(tokenizer: Any, *ends: int | Iterable[int] | None) -> set[int]:
    """The ids that every draft must keep: the tokenizer's special and added tokens, such as
    those of a chat template, and the ids that end a sequence."""
    found = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    for ids in ends:
        found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
    return found


def coverage(p: Tensor, ids: Sequence[int]) -> float:
    """The mean probability of these ids over rows p [n, V]: an upper bound of α for a draft that knows no others."""
    return float(p.index_select(-1, torch.tensor(list(ids), device=p.device)).sum(-1).double().mean())


FORM = re.compile(r"(?P<size>\d+%?)(?::(?P<file>.+))?")
SHIPPED = "the texts that ship with specbench"
PIECE = 1 << 16  # characters tokenized at once

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """`8192` or `25%`: that many of the most frequent tokens of the shipped texts; `8192:FILE`: of a text, of the
    texts of a JSON Lines file, or of counts; `FILE`: all its tokens. Special tokens are always kept and count.

    A .json file has counts, {"id": count}, or ids, the most frequent first, as in the lists of FR-Spec.
    """

    size: str
    file: Path | None

    @classmethod
    def read(cls, text: str) -> "Cut":
        """Parse a cut. UsageError for an invalid one, and for a missing file."""
        found = FORM.fullmatch(text)
        named = text if found is None else found["file"]
        if named is not None and not Path(named).is_file():
            raise UsageError(
                f"--draft-vocabulary {text}: expected 8192, 25%, 8192:FILE or FILE; there is no file {named}"
            )
        return cls(found["size"] if found else "", None if named is None else Path(named))

    @property
    def source(self) -> str:
        return SHIPPED if self.file is None else self.file.name

    def kept(self, encode: Encode, width: int, always: Collection[int]) -> list[int]:
        """The ids that a vocabulary of `width` tokens keeps, in rising order; ties go to the
        lowest id, which a byte-pair tokenizer made first. UsageError if they are too few."""
        counts, forced = self.counts(encode, width), {one for one in always if 0 <= one < width}
        if self.size.endswith("%"):
            size = max(math.ceil(int(self.size[:-1]) * width / 100), len(forced))
        else:
            size = int(self.size) if self.size else len(forced | set(counts.nonzero()[:, 0].tolist()))
        return most_frequent(counts, size, forced)

    def counts(self, encode: Encode, width: int) -> Tensor:
        """[width] the count of every token."""
        if self.file is not None and self.file.suffix == ".json":
            return stored_counts(self.file, width)
        counts = torch.zeros(width, dtype=torch.long)
        for text in texts(self.file):
            ids = torch.tensor([*encode(text)], dtype=torch.long)
            counts += torch.bincount(ids[ids < width], minlength=width)
        return counts


def texts(file: Path | None) -> Iterator[str]:
    """The texts of a file, or all shipped ones, in pieces."""
    for path in sorted((ASSETS / "prompts").glob("*.jsonl")) if file is None else [file]:
        whole = content(path)
        lines = whole.splitlines(keepends=True)
        if path.suffix == ".jsonl":
            lines = [text for line in lines if line.strip() for text in strings(parsed(path, line))]
        piece = ""
        for line in lines:
            piece += line
            if len(piece) >= PIECE:
                yield piece
                piece = ""
        yield piece


def content(path: Path) -> str:
    try:
        return read_whole(path).decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None


def parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as JSON: {first_line(error)}") from None


def strings(value: Any) -> Iterator[str]:
    """The texts of a row, without column names and identifiers."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from () if name == "id" or name.endswith("_id") else strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def stored_counts(path: Path, width: int) -> Tensor:
    """[width] the counts in a JSON file; for a list of ids, descending counts."""
    found = parsed(path, content(path))
    if isinstance(found, list):
        found = dict(zip(map(str, found), range(len(found), 0, -1), strict=True))
    counts = torch.zeros(width, dtype=torch.double)
    for name, count in found.items() if isinstance(found, dict) else [("", found)]:
        number = int(name) if str(name).isdecimal() else width
        counted = isinstance(count, int | float) and not isinstance(count, bool) and 0 <= count < math.inf
        if number >= width or not counted:
            raise UsageError(
                f"{path}: expected a list of the ids 0 to {width - 1}, or counts of them as {{id: count}}, found "
                f"{str(name)[:40]!r}"
            )
        counts[number] = count
    return counts
