"""A tiny pair of random checkpoints with one tokenizer of sixty words, and prompts for it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.support.checkpoints import WEIGHTS, llama

CONTEXT = 48
EOS = 60
# transformers computes the angles of this rope anew where a text is longer than those it has: it reads the length
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path

    @property
    def options(self) -> tuple[str, ...]:
        return "--target", str(self.target), "--draft", str(self.draft)


def save_pair(folder: Path, context: int = CONTEXT) -> Pair:
    """A target whose laws are far from uniform; the draft is its embedding, first layer and head."""
    torch.manual_seed(0)
    shape = {"max_position_embeddings": context, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": None}
    target = LlamaForCausalLM(llama(**shape))
    for weight in (w for w in target.parameters() if w.ndim > 1):
        weight.data *= 15
    draft = LlamaForCausalLM(llama(**shape, num_hidden_layers=1))
    draft.load_state_dict(target.state_dict(), strict=False)
    pair = Pair(folder / "target", folder / "draft")
    for model, place in ((target, pair.target), (draft, pair.draft)):
        model.save_pretrained(place)
        save_tokenizer(place)
    return pair


def reading(pair: Pair, folder: Path, *roles: str) -> Pair:
    """The same pair, but that the networks of some roles read a value in their passes."""
    for role in ("target", "draft"):
        shutil.copytree(getattr(pair, role), folder / role)
        if role in roles:
            config = folder / role / "config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), "rope_parameters": DYNAMIC}))
    return Pair(folder / "target", folder / "draft")


def save_tokenizer(place: Path, names: str = "w{}") -> None:
    words = {names.format(n): n for n in range(EOS)} | {"<eos>": EOS}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(place)


def prompts(path: Path, *lengths: int, first: int = 1) -> str:
    """A data set of prompts of so many words; returns its name on the command line."""
    texts = [" ".join(f"w{(first + n + i) % 40}" for i in range(length)) for n, length in enumerate(lengths)]
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": t}) + "\n" for n, t in enumerate(texts)))
    return f"jsonl:{path}"


def change_weights(place: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Load the weights of a checkpoint, change them in place and write them back."""
    weights = load_file(place / WEIGHTS)
    change(weights)
    save_file(weights, place / WEIGHTS, metadata={"format": "pt"})
