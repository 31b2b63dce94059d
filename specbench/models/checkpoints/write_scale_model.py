"""Scale models as folders that transformers and vLLM load like any other: weights in shards, tokenizer, model card.

A folder is written completely or not at all, and equal arguments give equal bytes. Shards are made one by one.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import StateDictSplit, split_torch_state_dict_into_shards
from safetensors.torch import save_file
from transformers import PreTrainedConfig

from specbench.errors import UsageError
from specbench.models.checkpoints import description, loading, names
from specbench.models.checkpoints.check import json_object
from specbench.models.checkpoints.names import GROWN, resolve
from specbench.models.scale import growth

CPU = torch.device("cpu")
TOKENIZER = (*description.TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
             "vocab.txt", "merges.txt", "chat_template.jinja")  # fmt: skip
CARD = """# {label}: a scale model

The function of `{small}` at the cost of `{like}`: a small Llama checkpoint enlarged to a larger shape **without
changing what it computes**. It answers as well, or as badly, as the small model; it takes the memory, the bandwidth and
the arithmetic of the large one. It was made by `specbench models grow` to measure speculative decoding where no large
checkpoint can be had. It must not be used for anything else, and no number measured on it is a statement about the
model whose shape it has: acceptance is the small pair's.

| | |
|---|---|
| parameters | {parameters:,} |
| weights | {dtype} |
| layers × width | {layers} × {width} |
| vocabulary | {vocabulary:,} rows: the first {known:,} are tokens, the others are never drawn |

{notes}
The licence is that of `{small}`. Zeros and noise fill what the original does not (`specbench/models/scale/growth.py`).
"""


def write_scale_model(
    small: str, like: str, out: Path, dtype: torch.dtype, max_shard_size: str = "5GB", *, overwrite: bool = False
) -> None:
    """Write the checkpoint `small` grown to the shape `like` into the folder `out`.

    UsageError if `out` exists (with `overwrite`: if it is not a scale model) or the disk is too
    full; UnusableModelError if the checkpoint cannot be grown.
    """
    checkpoint = resolve(f"{small}{GROWN}{like}")
    config = description.load_config(checkpoint)
    config.dtype = dtype
    tensors = growth.empty_weights(growth.skeleton(config))
    shards = sharded(tensors, max_shard_size)
    check_place(out, overwrite)
    size = sum(t.nbytes for t in tensors.values())
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if free < size + 2**26:  # and the tokenizer
        raise UsageError(f"{out} needs {size / 1e9:.1f} GB, and {parent} has {free / 1e9:.1f} GB left")
    original = loading.load_original(checkpoint)
    sizes = growth.Growth.of(original.model.config, config)
    with appearing(out) as folder:
        config.save_pretrained(folder)
        files = names.fetch(checkpoint)
        for one in sorted({one for pattern in TOKENIZER for one in files.glob(pattern)}):
            shutil.copyfile(one, folder / one.name)
        original.model.generation_config.save_pretrained(folder)
        (folder / "README.md").write_text(card(config, sizes, tensors), encoding="utf-8")
        source = original.model.state_dict()
        for file, inside in shards.filename_to_tensors.items():
            part = {n: growth.grown(n, tensors[n], source, sizes, CPU) for n in inside}
            save_file(part, folder / file, metadata={"format": "pt"})
            shutil.copymode(folder / "config.json", folder / file)  # safetensors makes its files unreadable for others
        if shards.is_sharded:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def sharded(tensors: dict[str, torch.Tensor], max_shard_size: str) -> StateDictSplit:
    try:
        return split_torch_state_dict_into_shards(tensors, max_shard_size=max_shard_size)
    except ValueError as error:
        raise UsageError(f"--max-shard-size {max_shard_size!r}: write a size such as 5GB or 500MB") from error


def card(config: PreTrainedConfig, sizes: growth.Growth, tensors: dict[str, torch.Tensor]) -> str:
    origin = getattr(config, growth.KEY)
    return CARD.format(
        label=growth.label(config),
        small=origin["from"],
        like=origin["like"],
        parameters=sum(t.numel() for t in tensors.values()),
        dtype=str(config.dtype).removeprefix("torch."),
        layers=sizes.large.num_hidden_layers,
        width=sizes.large.hidden_size,
        vocabulary=sizes.large.vocab_size,
        known=sizes.small.vocab_size,
        notes="".join(f"* unlike `{origin['like']}`: {note}\n" for note in origin["notes"]),
    )


def check_place(out: Path, overwrite: bool) -> None:
    """UsageError unless a folder may be written here: only scale models are replaced."""
    if not out.exists() and not out.is_symlink():
        return
    if not overwrite:
        raise UsageError(f"{out} already exists: choose another --output, or add --overwrite")
    replaceable = growth.KEY in json_object(out / "config.json") or (out.is_dir() and not any(out.iterdir()))
    if out.is_symlink() or not replaceable:
        raise UsageError(f"{out} is not a scale model: --overwrite replaces nothing else; choose another --output")


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A folder to fill that replaces `out` when complete; it is removed on failure."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        new.mkdir()
        yield new
        if out.exists():
            os.rename(out, old)
        os.rename(new, out)
