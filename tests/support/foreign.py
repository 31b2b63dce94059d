"""Tiny tokenizers that spell the same text in other tokens, and the tables of a draft that has one of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.decoding.protocols import Dictionary
from specbench.models.checkpoints.tokenizers import spelling_of
from specbench.models.checkpoints.vocabularies import Rewriter, Vocabularies
from tests.support.checkpoints import llama
from tests.support.tinypair import Pair

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
Merges = Sequence[tuple[str, str]]


def letters(tokens: Sequence[str], merges: Merges = (), eos: str | None = None) -> PreTrainedTokenizerFast:
    """Tokens as they stand, longer ones merged from shorter ones; `eos` is no text."""
    bpe = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, list(merges)))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos)


def byte_level(
    merges: Merges = (), eos: str = "<|end|>", special: Sequence[str] = (), nfc: bool = False
) -> PreTrainedTokenizerFast:
    """All bytes and some merges, as GPT-2 writes them; `nfc`: texts are normalised, so that some do not come back."""
    tokens = [eos, *BYTES, *("".join(pair) for pair in merges)]
    bpe = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, list(merges)))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if nfc:
        bpe.normalizer = normalizers.NFC()
    bpe.add_special_tokens([eos, *special])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos)


def sentence_pieces(words: Sequence[str], eos: str = "</s>", bos: str = "<s>") -> PreTrainedTokenizerFast:
    """Letters, words after ▁, and bytes as <0x0A>, as Llama's tokenizer writes them: with a space before every text."""
    singles = sorted({letter for word in words for letter in word} | {"▁"})
    grown = [word[:size] for word in words for size in range(2, len(word) + 1)]
    merges = list(dict.fromkeys((word[:size], word[size]) for word in words for size in range(1, len(word))))
    tokens = ["<unk>", bos, eos, *(f"<0x{n:02X}>" for n in range(256)), *singles, *dict.fromkeys(grown)]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    bpe.decoder = decoders.Sequence(steps)
    bpe.add_special_tokens(["<unk>", bos, eos])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", bos_token=bos, eos_token=eos)


def both(
    target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast, wanted: str = "auto", more: int = 0
) -> Vocabularies:
    """Two vocabularies whose heads are `more` wider than their tokenizers."""
    spellings = spelling_of(target), spelling_of(draft)
    return Vocabularies(*spellings, len(target) + more, len(draft) + more, wanted=wanted)  # type: ignore[arg-type]


def lasting(found: Vocabularies) -> Dictionary:
    """Its dictionary, of which copies share the tokenizers."""
    return replace(found.dictionary(), prompt=lambda ids: found.prompt(ids))


class Lasting(Rewriter):
    """A scribe that is not copied with the method that has it."""

    def __deepcopy__(self, memo: dict[int, object]) -> "Lasting":
        return self


def restricted(table: Tensor, theirs: Tensor) -> Tensor:
    """The rows of a table [N, V'] with nothing but for some tokens, renormalised: what `Common` asks of its model."""
    kept = torch.zeros_like(table).index_copy(1, theirs, table[:, theirs])
    even = torch.zeros_like(table).index_fill(1, theirs, 1 / len(theirs))
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp_min(1e-300), even)


def save_pair(folder: Path, target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast, context: int = 96) -> Pair:
    """Two random networks with laws far from uniform, each with a tokenizer of its own."""
    pair = Pair(folder / "target", folder / "draft")
    for seed, (place, tokenizer) in enumerate(((pair.target, target), (pair.draft, draft))):
        torch.manual_seed(seed)
        ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
        net = LlamaForCausalLM(llama(vocab_size=len(tokenizer), max_position_embeddings=context, **ends))
        for weight in (w for w in net.parameters() if w.ndim > 1):
            weight.data *= 15
        net.save_pretrained(place)
        tokenizer.save_pretrained(place)
    return pair
