"""GGUF files: as checkpoints, which transformers dequantises while loading, and written from a Llama for llama.cpp.

Weights are never kept packed: transformers does that only for devices other than a CPU, with kernels that
it would download from the hub and run. Written files have the same token ids, and are made once and cached.
Their text is split before merges in GPT-2's way, so callers that need identical tokens must pass ids.
"""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

from specbench.errors import UnusableModelError
from specbench.files import replacing, writing
from specbench.models.checkpoints import names
from specbench.models.checkpoints.names import Checkpoint, require
from specbench.wording import clean_path

PART = re.compile(r"-\d{5}-of-\d{5}\.gguf")
# This is transformers' only progress bar without another switch.
modeling_gguf_pytorch_utils.tqdm = logging.tqdm  # type: ignore[attr-defined]
LARGE = 64 << 20  # bytes of a file; above, its slow reading is announced
UNPACKED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def fetch(checkpoint: Checkpoint) -> Path:
    """The folder with the file of `checkpoint`; UnusableModelError if the file or its reader is missing."""
    require("gguf", f"{checkpoint.name}: a GGUF file")
    file = str(checkpoint.file)
    if PART.search(file):
        raise UnusableModelError(
            f"{checkpoint.name} is a part of a GGUF file: join the parts with llama-gguf-split --merge"
        )
    folder = names.fetch(checkpoint, (file,))
    if not (folder / file).is_file():
        raise UnusableModelError(f"{checkpoint.name}: {checkpoint.source} has no file {file}")
    return folder


@contextmanager
def read_once(checkpoint: Checkpoint) -> Iterator[None]:
    """Let transformers use the existing reader: configuration, tokenizer and weights each begin by reading
    all words of the tokenizer, which takes seconds. Its loaders take the class from the module `gguf`."""
    if not checkpoint.file:
        yield
        return
    import gguf

    own, gguf.GGUFReader = gguf.GGUFReader, lambda file: reader(Path(file))  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        gguf.GGUFReader = own  # type: ignore[misc]


_READERS: dict[Path, tuple[int, Any]] = {}  # by the mapped file: its modification time and its reader


def reader(file: Path) -> Any:
    """The package's reader of a file in its current state; `forget` frees it."""
    from gguf import gguf_reader

    changed = file.stat().st_mtime_ns
    if _READERS.get(file, (None,))[0] != changed:
        if file.stat().st_size > LARGE:
            print(f"reading {clean_path(file)}", file=sys.stderr)
        _READERS[file] = changed, gguf_reader.GGUFReader(file)
    return _READERS[file][1]


def forget(file: Path) -> None:
    """Free the reader of a file whose weights are loaded: a tokenizer's words take hundreds of megabytes."""
    _READERS.pop(file, None)


def commonest(file: Path) -> str:
    """The GGUF type (Q4_1, F32 …) of most weights of a file."""
    return _commonest(file, file.stat().st_mtime_ns)


@cache
def _commonest(file: Path, _: int) -> str:
    found = Counter[str]()
    for tensor in reader(file).tensors:
        found[tensor.tensor_type.name] += int(tensor.n_elements)
    return found.most_common(1)[0][0]


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}  # fmt: skip
VERSION = 2  # of written files: those of another version are not used
INSTEAD = "convert it with llama.cpp's own converter, and name the GGUF file"


def gguf_of(name: str, weights: list[Path], config: Any, tokenizer: Any, dtype: torch.dtype, folder: Path) -> Path:
    """The GGUF file of a checkpoint in a dtype, made in `folder` if missing. UnusableModelError
    for another architecture, or for unsupported features."""
    refuse_unable(name, config, dtype)
    if any(path.suffix != ".safetensors" for path in weights):
        raise UnusableModelError(f"{name}: no GGUF file is made of it here (its weights are pickled): {INSTEAD}")
    require("gguf", f"{name}: a GGUF file")
    about = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    made = folder / f"{hashlib.sha256(repr((VERSION, about, str(dtype))).encode()).hexdigest()[:16]}.gguf"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with writing(str(made), "SPECBENCH_CACHE names another folder"), replacing(made) as file:
            write(file, weights, config, tokenizer, dtype)
    return made


def refuse_unable(name: str, config: Any, dtype: torch.dtype) -> None:
    """UnusableModelError, before a weight is read, for features that are not written here."""
    rope = getattr(config, "rope_parameters", None) or {}
    unable = {
        f"its architecture is {config.model_type}": config.model_type != "llama",
        f"its rope is {rope.get('rope_type')}": rope.get("rope_type", "default") != "default",
        "its layers have biases": bool(config.attention_bias or config.mlp_bias),
        f"{dtype} has no type in GGUF": dtype not in (torch.float32, torch.bfloat16, torch.float16),
    }
    for why, found in unable.items():
        if found:
            raise UnusableModelError(f"{name}: no GGUF file is made of it here ({why}): {INSTEAD}")


def write(file: Path, weights: list[Path], config: Any, tokenizer: Any, dtype: torch.dtype) -> None:
    """Write the file: sizes, vocabulary, and the weights one after the other."""
    import gguf

    writer = gguf.GGUFWriter(file, "llama", use_temp_file=True)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    add_vocabulary(writer, config, tokenizer)
    for path in weights:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                add(writer, name, tensors.get_tensor(name), config, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: Any, config: Any, tokenizer: Any) -> None:
    """Add a word for every id. llama.cpp needs at least one merge to read the file, even if none applies."""
    import gguf

    words: Mapping[str, int] = tokenizer.get_vocab()
    named = {number: word for word, number in words.items()}
    special = set(tokenizer.all_special_ids)
    ids = range(config.vocab_size)
    normal, control, unused = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([named.get(number, f"[unused {number}]") for number in ids])
    writer.add_token_types([unused if n not in named else control if n in special else normal for n in ids])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"].get("merges", [])  # of byte pairs, in order
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    writer.add_token_merges(merges or [f"{named[0]} {named[1]}"])
    writer.add_add_bos_token(False)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)


def add(writer: Any, name: str, weight: Tensor, config: Any, dtype: torch.dtype) -> None:
    """Add one tensor: a matrix in the dtype, a norm's vector in float32, as in llama.cpp."""
    import gguf

    if "rotary_emb" in name or (name == "lm_head.weight" and config.tie_word_embeddings):
        return
    if "q_proj" in name or "k_proj" in name:  # llama.cpp puts the halves of a rotary pair together
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        weight = weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    data = weight.to(dtype if weight.ndim > 1 else torch.float32).contiguous()
    if data.dtype == torch.bfloat16:
        writer.add_tensor(name, data.view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, data.numpy())
