"""Checks before any weight is read: whether a draft fits a target, and whether a description is plausible.

An id must mean the same token to both. The size of the vocabulary does not show that, and the
widths of the heads are only padding.
"""

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from specbench.errors import SpecbenchError, UnusableModelError, out_of_memory
from specbench.files import check_regular, read_whole
from specbench.wording import clean, first_line

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


def check_pair(
    target_tokenizer: "PreTrainedTokenizerBase",
    draft_tokenizer: "PreTrainedTokenizerBase",
    target_config: "PreTrainedConfig",
    draft_config: "PreTrainedConfig",
    name: str = "draft",
) -> tuple[int, list[str]]:
    """(the context of both models, NO_LIMIT if neither declares one; warnings). UnusableModelError, with the
    differences, for models that do not fit. `name` is the draft's role."""
    target, draft = _tokens(target_tokenizer), _tokens(draft_tokenizer)
    differing = _differing(target, draft)
    if differing or not target.keys() & draft.keys():
        shown = [f"{n} is {target[n]!r} in the target and {draft[n]!r} in the {name}" for n in differing[:3]]
        raise UnusableModelError(
            f"target and {name} have different tokenizers ({len(target)} and {len(draft)} tokens, {len(differing)} ids "
            f"differ): {', '.join(shown) or 'no id in common'}; choose a draft of the target's family (the pairs in "
            "configs/pairs.yaml) or a method without a draft model, such as prompt lookup"
        )
    warnings = [
        *_unknown(target, draft, "target", name),
        *_unknown(draft, target, name, "target"),
        *_other_habits(target_tokenizer, draft_tokenizer, name),
        *_other_widths(target, target_config, draft_config, name),
    ]
    contexts = context_length(target_config), context_length(draft_config)
    if contexts[1] < contexts[0]:
        warnings.append(f"the {name} reads {contexts[1]} tokens only: the run is limited to its context")
    return min(contexts), warnings


def _tokens(tokenizer: "PreTrainedTokenizerBase") -> dict[int, str]:
    """Token by id. Sorted, because the order of a vocabulary is not stable and an id may have two names."""
    return {number: token for token, number in sorted(tokenizer.get_vocab().items())}


def context_length(config: "PreTrainedConfig") -> int:
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else NO_LIMIT


def alike(target_tokenizer: "PreTrainedTokenizerBase", draft_tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether two tokenizers have at least one id in common, and every common id means the same token."""
    target, draft = _tokens(target_tokenizer), _tokens(draft_tokenizer)
    return bool(target.keys() & draft.keys()) and not _differing(target, draft)


def _differing(target: dict[int, str], draft: dict[int, str]) -> list[int]:
    return [number for number in sorted(target.keys() & draft.keys()) if target[number] != draft[number]]


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


def _other_widths(
    tokens: dict[int, str], target_config: "PreTrainedConfig", draft_config: "PreTrainedConfig", draft: str
) -> list[str]:
    target_width, draft_width = (c.get_text_config(decoder=True).vocab_size for c in (target_config, draft_config))
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


# --- descriptions -----------------------------------------------------------------------------------------------------
# Checked before transformers reads them: hostile sizes would keep a library busy for hours, or fill the memory.

LARGEST = 16 << 20  # bytes of config.json; lists of quantised layers make it long
LARGEST_TOKENIZER = 256 << 20  # bytes of any other description; vocabularies of 256,000 words have 35 MiB
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
DESCRIPTIONS = (TOKENIZER, "tokenizer_config.json", GENERATION, "special_tokens_map.json")

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 2_000  # a module is made for each before its weights are read
WIDTH = ("hidden_size", "n_embd", "d_model")
ROWS = ("vocab_size", "intermediate_size", "n_inner", "ffn_dim")  # rows of matrices that are as wide as the network
FLOATS = ("float", "bfloat", "half", "double", "auto")  # prefixes of dtypes that support arithmetic
PART = re.compile(r"-of-(\d+)\.")  # the total number of shards
BUILT_AT_ONCE = 50_000_000  # weights; a smaller network is built first, and names its missing weights
DENSEST = 8  # weights per byte in the tightest quantisation
GROWN = 512  # maximum factor by which a tokenizer's steps may lengthen a text; known ones reach 108
GROWING = (b"Replace", b"Prepend", b"Precompiled", rb"\u00")  # steps that lengthen a text; letters may be escaped
NO_NETWORK = ("quantization_config", "compression_config")  # parts of a configuration without sizes


def obstacle(folder: Path) -> str | None:
    """Why the files that describe a checkpoint are invalid; None if they are valid."""
    file = folder / "config.json"
    try:
        for name in DESCRIPTIONS:
            if (folder / name).exists():
                check_regular(folder / name, LARGEST_TOKENIZER)
        config = json.loads(read_whole(file, LARGEST))
    except OSError as error:
        return f"cannot read {clean(error.filename or file, 300)}: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return f"unusable {file}: not JSON ({first_line(error)})"
    if not isinstance(config, dict):
        return f"unusable {file}: a JSON {type(config).__name__}, not an object"
    reason = next(objections(config), None) or too_few_weights(folder, config)
    ends = json_object(folder / GENERATION).get("eos_token_id")  # they override those of config.json
    if not reason and (other := next(objections({**config, "eos_token_id": ends}), None)):
        return f"unusable {folder / GENERATION}: {other}"
    return reason and f"unusable {file}: {reason}"


def tokenizer_obstacle(folder: Path) -> str | None:
    """Why a tokenizer.json is refused: its steps make a text so long that it fills the memory. None if it is usable."""
    file = folder / TOKENIZER
    try:
        text = read_whole(file, LARGEST_TOKENIZER) if file.exists() else b""
        described = json.loads(text) if any(step in text for step in GROWING) else {}
        times = max(_growth(described.get(part)) for part in ("normalizer", "decoder"))
    except OSError as error:
        return f"cannot read {file}: {error.strerror}"
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError) as error:
        return f"unusable {file}: {first_line(error)}"
    return f"unusable {file}: it makes a text more than {GROWN} times as long" if times > GROWN else None


def _growth(step: Any) -> int:
    """The factor by which a text can grow in a step of a tokenizer, or in several successive ones."""
    if isinstance(step, list):
        return reduce(lambda times, one: min(times * _growth(one), GROWN + 1), step, 1)
    if not isinstance(step, dict):
        return 1
    if step.get("type") == "Replace":
        letters, pattern = len(step["content"]), step["pattern"]
        return max(-(-letters // max(len(pattern.get("String", "")), 1)), 1) if "String" in pattern else letters + 1
    if step.get("type") == "Prepend":
        return len(step["prepend"]) + 1
    if step.get("type") == "Precompiled":  # the size of a table, the table, and its output texts
        table = base64.b64decode(step["precompiled_charsmap"])
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return max(1, *(len(text.decode(errors="replace")) for text in texts))
    return _growth(list(step.values()))


def json_object(file: Path, most: int = LARGEST) -> dict[str, Any]:
    """The JSON object in a file; empty if it is missing or invalid, which its reader reports."""
    try:
        found = json.loads(read_whole(file, most))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def objections(config: dict[str, Any]) -> Iterator[str]:
    """The invalid numbers of a configuration and of its parts, in words."""
    vocabulary = max((n for key, n in named(config) if key == "vocab_size" and type(n) is int), default=None)
    for key, value in named(config):
        if key in LAYERS and (wrong := beyond(value, 1, MOST_LAYERS)):
            yield f"{key} is {clean(wrong[0], 40)}, where whole numbers up to {MOST_LAYERS:,} are possible"
        elif (
            key in ("dtype", "torch_dtype")
            and isinstance(value, str)
            and not value.removeprefix("torch.").startswith(FLOATS)
        ):
            yield f"{key} is {clean(value, 40)!r}, not a dtype to compute in: write float32, float16 or bfloat16"
        elif key == "draft_vocab_size" and (wrong := beyond(value, 1, vocabulary or 1 << 31)):
            yield f"draft_vocab_size is {clean(wrong[0], 40)}, and the vocabulary has {vocabulary or 0:,} tokens"
        elif key == "eos_token_id" and vocabulary is not None and (wrong := beyond(value, 0, vocabulary - 1)):
            yield f"eos_token_id is {clean(wrong[0], 40)}, and the vocabulary has {vocabulary:,} tokens"


def too_few_weights(folder: Path, config: dict[str, Any]) -> str | None:
    """Why the weights in a folder do not match the configuration, before a network of that size is built."""
    files = [file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern) if file.is_file()]
    stored, wanted = sum(file.stat().st_size for file in files), least_weights(config)
    parts = [found for file in files if (found := PART.search(file.name))]
    whole = files and all(int(found[1]) <= len(parts) for found in parts)  # otherwise shards are still missing
    if not whole or wanted <= max(BUILT_AT_ONCE, DENSEST * stored):
        return None
    return f"a network of its sizes has {wanted:,} weights or more, and the files of weights have {stored:,} bytes"


def least_weights(config: dict[str, Any]) -> int:
    """A lower bound of the number of weights: the largest matrix of the width, and a square one per layer."""
    parts = [config, *(value for key, value in named(config) if key.endswith("_config") and isinstance(value, dict))]
    least = 0
    for part in parts:
        width, layers = (max(_count(part, name) for name in known) for known in (WIDTH, LAYERS))
        heads = max(_count(part, name) for name in ("num_attention_heads", "num_key_value_heads"))
        rows = max(*(_count(part, name) for name in ROWS), heads * _count(part, "head_dim"))
        least = max(least, width * rows + layers * width**2 // 2 if layers else 0)
    return least


def _count(part: dict[str, Any], name: str) -> int:
    """A number of a configuration, or the largest of a list with one per layer; 0 if missing."""
    found: Any = part.get(name)
    return max((int(one) for one in (found if isinstance(found, list) else [found]) if type(one) is int), default=0)


def named(config: dict[str, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """The entries of a configuration and of its parts (text_config …)."""
    for key, value in config.items():
        yield key, value
        if key.endswith("_config") and key not in NO_NETWORK and isinstance(value, dict) and depth:
            yield from named(value, depth - 1)


def beyond(value: Any, least: int, most: int) -> list[Any]:
    """The values of a number or a per-layer list that are not whole numbers within bounds; None is ignored."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    return [one for one in found if not (type(one) is int and least <= one <= most)]


def attempt(failed: str, load: Callable[[], Any]) -> Any:
    """The result of `load`. UnusableModelError, naming the failed step, for any error of a library."""
    try:
        return load()
    except SpecbenchError:
        raise  # already in our words
    except Exception as error:  # a pickle with code, a damaged archive, an adapter of another base
        if out_of_memory(error):
            raise  # not the checkpoint's fault: the caller knows the other contents of memory
        reason = first_line(error)
        if isinstance(error, UnpicklingError):  # torch's message advises running the code
            reason = "damaged, or a pickle with code, which is never run: copy it again, or convert to safetensors"
        elif isinstance(error, KeyError):
            reason = f"config.json has {error}, which transformers does not know"
        raise UnusableModelError(f"{failed}: {reason}") from error
