"""Whether a draft fits a target, decided from tokenizers and configurations alone, before any weight is read.

An id must mean the same token to both. The size of the vocabulary does not show that, and the
widths of the heads are only padding.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.errors import UnusableModelError
from specbench.wording import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "def add(a: int, b: int = 0) -> int:\n    return a + b  # sum\n",
    "for (int i = 0; i < n; ++i) {\n\t\tx[i] <<= 2;\n}\r\n",
    "  two,   three,      six\t\ttabs\n\n\n three lines ",
    "naïve café, Übergröße, Ελληνικά, русский, tiếng Việt",
    "日本語の文章 한국어 العربية עברית हिन्दी",
    "🙂 👩🏽‍🚀 🇩🇪 ≤ ∑ … “quotes” — dash",
    "3.14159 1,000,000 0x1F 1e-12 2026-01-31",
    "HTTPServer_v2.getURL('https://example.org/?q=a%20b&c=d')",
    "<s></s> <|endoftext|> [INST] <unk> \\n \u00a0\u200b",
)
NO_LIMIT = sys.maxsize


@dataclass(frozen=True)
class PairReport:
    """The properties of a pair that a run needs.

    `vocabulary` is that of the target's tokenizer, which encodes prompts and decodes output; higher
    ids are padding. `context` is the maximum for both models, NO_LIMIT if neither declares one.
    """

    vocabulary: int
    target_width: int
    draft_width: int
    context: int
    warnings: tuple[str, ...]


def check_pair(
    target_tokenizer: "PreTrainedTokenizerBase",
    draft_tokenizer: "PreTrainedTokenizerBase",
    target_config: "PreTrainedConfig",
    draft_config: "PreTrainedConfig",
    name: str = "draft",
) -> PairReport:
    """The report on a valid pair; an invalid one is refused with the differences. `name` is the draft's role."""
    target, draft = _tokens(target_tokenizer), _tokens(draft_tokenizer)
    widths = _text(target_config).vocab_size, _text(draft_config).vocab_size
    _refuse_other_tokens(target, draft, name)
    warnings = [
        *_unknown(target, draft, "target", name),
        *_unknown(draft, target, name, "target"),
        *_other_habits(target_tokenizer, draft_tokenizer, name),
        *_other_widths(target, *widths, name),
    ]
    contexts = context_length(target_config), context_length(draft_config)
    if contexts[1] < contexts[0]:
        warnings.append(f"the {name} reads {contexts[1]} tokens only: the run is limited to its context")
    return PairReport(max(target) + 1, *widths, min(contexts), tuple(warnings))


def _tokens(tokenizer: "PreTrainedTokenizerBase") -> dict[int, str]:
    """Token by id. Sorted, because the order of a vocabulary is not stable and an id may have two names."""
    return {number: token for token, number in sorted(tokenizer.get_vocab().items())}


def _text(config: "PreTrainedConfig") -> "PreTrainedConfig":
    return config.get_text_config(decoder=True)


def context_length(config: "PreTrainedConfig") -> int:
    limit = getattr(_text(config), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else NO_LIMIT


def alike(target_tokenizer: "PreTrainedTokenizerBase", draft_tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether two tokenizers have at least one id in common, and every common id means the same token."""
    target, draft = _tokens(target_tokenizer), _tokens(draft_tokenizer)
    return bool(target.keys() & draft.keys()) and not _differing(target, draft)


def _differing(target: dict[int, str], draft: dict[int, str]) -> list[int]:
    return [number for number in sorted(target.keys() & draft.keys()) if target[number] != draft[number]]


def _refuse_other_tokens(target: dict[int, str], draft: dict[int, str], name: str) -> None:
    differing = _differing(target, draft)
    if differing or not target.keys() & draft.keys():
        shown = [f"{n} is {target[n]!r} in the target and {draft[n]!r} in the {name}" for n in differing[:3]]
        raise UnusableModelError(
            f"target and {name} have different tokenizers ({len(target)} and {len(draft)} tokens, {len(differing)} ids "
            f"differ): {', '.join(shown) or 'no id in common'}; choose a draft of the target's family (the pairs in "
            "configs/pairs.yaml) or a method without a draft model, such as prompt lookup"
        )


def _unknown(tokens: dict[int, str], other: dict[int, str], name: str, other_name: str) -> list[str]:
    """The tokens that only one side has, such as those of a chat template: the common ids still agree."""
    extra = sorted(tokens.keys() - other.keys())
    if not extra:
        return []
    shown = ", ".join(f"{number} {tokens[number]!r}" for number in extra[:3])
    return [f"{len(extra)} tokens of the {name} are unknown to the {other_name}, first {shown}"]


def _other_habits(target: "PreTrainedTokenizerBase", draft: "PreTrainedTokenizerBase", name: str) -> list[str]:
    """Differences outside the ids: they cost acceptance, not correctness."""
    warnings = []
    for role in ("bos_token", "eos_token"):
        ours, theirs = getattr(target, role, None), getattr(draft, role, None)
        if ours != theirs:
            warnings.append(f"{role} is {ours!r} in the target and {theirs!r} in the {name}: the target's is used")
    split = [text for text in PROBES if _encode(target, text) != _encode(draft, text)]
    if split:
        warnings.append(
            f"{len(split)} of {len(PROBES)} probe texts are split into other tokens by the {name}'s tokenizer, first "
            f"{split[0]!r}: prompts are encoded by the target's, acceptance may suffer"
        )
    return warnings


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    try:
        return list(tokenizer.encode(text, add_special_tokens=False))
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise UnusableModelError(f"a tokenizer fails on the text {text!r}: {first_line(error)}") from error


def _other_widths(tokens: dict[int, str], target_width: int, draft_width: int, draft: str) -> list[str]:
    warnings = []
    for name, width in (("target", target_width), (draft, draft_width)):
        beyond = sorted(number for number in tokens if number >= width)
        if beyond:
            first = f"{beyond[0]} {tokens[beyond[0]]!r}"
            warnings.append(f"{len(beyond)} tokens are beyond the {width} embeddings of the {name}, first {first}")
    if target_width != draft_width:
        verb = "padded with zeros" if draft_width < target_width else "cut"
        warnings.append(
            f"same tokenizer, other head widths: {target_width} rows in the target, {draft_width} in the {draft}; the "
            f"{draft}'s distribution is {verb}, the target's stays as it is"
        )
    return warnings
