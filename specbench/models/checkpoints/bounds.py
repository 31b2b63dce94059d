"""Whether the description of a checkpoint can be believed, before transformers looks at it.

Hostile sizes would keep a library busy for hours, or fill the memory, before it looked at a weight.
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

LARGEST = 16 << 20  # bytes of config.json; lists of what is quantised make it long
LARGEST_TOKENIZER = 256 << 20  # bytes of any other description; vocabularies of 256,000 words have 35 MiB
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
DESCRIPTIONS = (TOKENIZER, "tokenizer_config.json", GENERATION, "special_tokens_map.json")

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 2_000  # a module is made of each before its weights are looked for
WIDTH = ("hidden_size", "n_embd", "d_model")
ROWS = ("vocab_size", "intermediate_size", "n_inner", "ffn_dim")  # of matrices that are as wide as the network
FLOATS = ("float", "bfloat", "half", "double", "auto")  # how the names of types begin that can be computed in
PART = re.compile(r"-of-(\d+)\.")  # of so many files
BUILT_AT_ONCE = 50_000_000  # weights; what a smaller network lacks is said by name once it is loaded
DENSEST = 8  # weights of a byte, of the tightest quantisation
GROWN = 512  # times as long as it was is what the steps of a tokenizer may make a text; those that are known make 108
GROWING = (b"Replace", b"Prepend", b"Precompiled", rb"\u00")  # they make a text longer; letters may be escaped
NO_NETWORK = ("quantization_config", "compression_config")  # parts of a configuration that say nothing of its sizes


def obstacle(folder: Path) -> str | None:
    """Why the files that describe a checkpoint cannot be read as such; None if they can."""
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
    """Why a tokenizer.json cannot be used: its steps make a text so long that it fills the memory. None if it can."""
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
    """How many times as long a text can be after a step of a tokenizer, or after several, one after the other."""
    if isinstance(step, list):
        return reduce(lambda times, one: min(times * _growth(one), GROWN + 1), step, 1)
    if not isinstance(step, dict):
        return 1
    if step.get("type") == "Replace":
        letters, pattern = len(step["content"]), step["pattern"]
        return max(-(-letters // max(len(pattern.get("String", "")), 1)), 1) if "String" in pattern else letters + 1
    if step.get("type") == "Prepend":
        return len(step["prepend"]) + 1
    if step.get("type") == "Precompiled":  # the size of a table, the table, and the texts that it leads to
        table = base64.b64decode(step["precompiled_charsmap"])
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return max(1, *(len(text.decode(errors="replace")) for text in texts))
    return _growth(list(step.values()))


def ends_in(folder: Path) -> Any:
    """The ids that end a sequence by the generation config, which goes before those of config.json; None without."""
    try:
        return json.loads(read_whole(folder / GENERATION, LARGEST))["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # of any other fault transformers will tell
        return None


def objections(config: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the numbers of a configuration and of those inside it, in words."""
    vocabulary = max((n for key, n in named(config) if key == "vocab_size" and is_count(n)), default=None)
    for key, value in named(config):
        if key in LAYERS and (wrong := beyond(value, 1, MOST_LAYERS)):
            yield f"{key} is {clean(wrong[0], 40)}, where whole numbers up to {MOST_LAYERS:,} are possible"
        elif (
            key in ("dtype", "torch_dtype")
            and isinstance(value, str)
            and not value.removeprefix("torch.").startswith(FLOATS)
        ):
            yield f"{key} is {clean(value, 40)!r}, in which nothing can be computed: write float32, float16 or bfloat16"
        elif key == "draft_vocab_size" and (wrong := beyond(value, 1, vocabulary or 1 << 31)):
            yield f"draft_vocab_size is {clean(wrong[0], 40)}, and the vocabulary has {vocabulary or 0:,} tokens"
        elif key == "eos_token_id" and vocabulary is not None and (wrong := beyond(value, 0, vocabulary - 1)):
            yield f"eos_token_id is {clean(wrong[0], 40)}, and the vocabulary has {vocabulary:,} tokens"


def too_few_weights(folder: Path, config: dict[str, Any]) -> str | None:
    """Why the weights beside a configuration are not those of it, before a network of such a size is built for them."""
    files = [file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern) if file.is_file()]
    stored, wanted = sum(file.stat().st_size for file in files), least_weights(config)
    parts = [found for file in files if (found := PART.search(file.name))]
    whole = files and all(int(found[1]) <= len(parts) for found in parts)  # or the rest is still to be downloaded
    if not whole or wanted <= max(BUILT_AT_ONCE, DENSEST * stored):
        return None
    return f"a network of its sizes has {wanted:,} weights or more, and the files of weights have {stored:,} bytes"


def least_weights(config: dict[str, Any]) -> int:
    """A lower bound of the number of weights: the largest matrix of the width, and a square one for every layer."""
    parts = [config, *(value for key, value in named(config) if key.endswith("_config") and isinstance(value, dict))]
    least = 0
    for part in parts:
        width, layers = (max(_count(part, name) for name in known) for known in (WIDTH, LAYERS))
        heads = max(_count(part, name) for name in ("num_attention_heads", "num_key_value_heads"))
        rows = max(*(_count(part, name) for name in ROWS), heads * _count(part, "head_dim"))
        least = max(least, width * rows + layers * width**2 // 2 if layers else 0)
    return least


def _count(part: dict[str, Any], name: str) -> int:
    """A number of a configuration, or the largest of a list of one for every layer; 0 where there is none."""
    found: Any = part.get(name)
    return max((int(one) for one in (found if isinstance(found, list) else [found]) if is_count(one)), default=0)


def named(config: dict[str, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """The entries of a configuration, and of those of the parts that it has (text_config …)."""
    for key, value in config.items():
        yield key, value
        if key.endswith("_config") and key not in NO_NETWORK and isinstance(value, dict) and depth:
            yield from named(value, depth - 1)


def beyond(value: Any, least: int, most: int) -> list[Any]:
    """What of a number, or of a list of one for every layer, is no whole number within bounds; None says nothing."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    return [one for one in found if not (is_count(one) and least <= one <= most)]


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def attempt(failed: str, load: Callable[[], Any]) -> Any:
    """What `load` returns. UnusableModelError, saying what failed, for whatever a library raises."""
    try:
        return load()
    except SpecbenchError:
        raise  # said in our words already
    except Exception as error:  # a pickle with code in it, a damaged archive, an adapter of another base
        if out_of_memory(error):
            raise  # not the checkpoint's fault: the caller knows what else lies in memory
        raise UnusableModelError(f"{failed}: {explained(error)}") from error


def explained(error: Exception) -> str:
    """What an error of loading says, where its own words say it."""
    if isinstance(error, UnpicklingError):  # torch would advise to run the code
        return "damaged, or more than tensors, and no code of a pickle is run: copy it again, or convert to safetensors"
    if isinstance(error, KeyError):
        return f"config.json says {error}, which transformers does not know"
    return first_line(error)
