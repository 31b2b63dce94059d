"""Plausibility checks on the description of a checkpoint, before transformers reads it.

Hostile sizes would keep a library busy for hours, or fill the memory, before it read a weight.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from specbench.errors import SpecbenchError, UnusableModelError, out_of_memory
from specbench.files import check_regular, read_whole
from specbench.wording import clean, first_line

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
    if not reason and (other := next(objections({**config, "eos_token_id": ends_in(folder)}), None)):
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


def ends_in(folder: Path) -> Any:
    """The end ids of the generation config, which override those of config.json; None if missing."""
    try:
        return json.loads(read_whole(folder / GENERATION, LARGEST))["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # transformers reports any other fault
        return None


def objections(config: dict[str, Any]) -> Iterator[str]:
    """The invalid numbers of a configuration and of its parts, in words."""
    vocabulary = max((n for key, n in named(config) if key == "vocab_size" and is_count(n)), default=None)
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
    return max((int(one) for one in (found if isinstance(found, list) else [found]) if is_count(one)), default=0)


def named(config: dict[str, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """The entries of a configuration and of its parts (text_config …)."""
    for key, value in config.items():
        yield key, value
        if key.endswith("_config") and key not in NO_NETWORK and isinstance(value, dict) and depth:
            yield from named(value, depth - 1)


def beyond(value: Any, least: int, most: int) -> list[Any]:
    """The values of a number or a per-layer list that are not whole numbers within bounds; None is ignored."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    return [one for one in found if not (is_count(one) and least <= one <= most)]


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def attempt(failed: str, load: Callable[[], Any]) -> Any:
    """The result of `load`. UnusableModelError, naming the failed step, for any error of a library."""
    try:
        return load()
    except SpecbenchError:
        raise  # already in our words
    except Exception as error:  # a pickle with code, a damaged archive, an adapter of another base
        if out_of_memory(error):
            raise  # not the checkpoint's fault: the caller knows the other contents of memory
        raise UnusableModelError(f"{failed}: {explained(error)}") from error


def explained(error: Exception) -> str:
    """The message of a loading error, from its own words if they are useful."""
    if isinstance(error, UnpicklingError):  # torch's message advises running the code
        return "damaged, or a pickle with code, which is never run: copy it again, or convert to safetensors"
    if isinstance(error, KeyError):
        return f"config.json has {error}, which transformers does not know"
    return first_line(error)
