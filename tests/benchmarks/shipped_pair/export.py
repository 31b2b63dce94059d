"""Writing the trained pair: tokenizer, bfloat16 safetensors and the model card."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.benchmarks.shipped_pair import corpus

CARD = """---
license: apache-2.0
language: [en]
tags: [llama, speculative-decoding]
---
# The demo pair of specbench

Two small Llama checkpoints with one tokenizer, made so that `specbench run` measures real speculative decoding on a
machine without network, model hub or GPU. They write text that looks like Python code and like its documentation;
they know nothing and must not be used for anything but measuring.

| | target | draft |
|---|---|---|
| layers × width | {target_layers} × {width} | {draft_layers} × {width} |
| parameters | {target_parameters:,} | {draft_parameters:,} |
| weights | bfloat16, {target_megabytes:.1f} MB | bfloat16, {draft_megabytes:.1f} MB |
| held-out loss, nats per token | {target_loss:.3f} | {draft_loss:.3f} |

* **α** at temperature 1, mean Σ min(p, q): {alpha:.3f} on held-out text (greedy agreement {greedy_agreement:.3f}).
* **Tokens seen**: target {tokens:,} in {steps:,} steps; the draft was distilled from the target's rows in
  {distilled:,} steps (forward KL plus total variation). Stages, rates and shapes: `tests/benchmarks/shipped_pair`.
* **Tokenizer**: byte-level BPE, {vocabulary:,} tokens, trained on the same text.
* **Context**: {context:,} positions; trained on windows of 256 tokens, at the end of 1,024.

## Data and licence

The text that comes with Python {python}:

{documents}

Copyright © 2001 Python Software Foundation, under the PSF License Agreement (https://docs.python.org/3/license.html), a
permissive licence compatible with the Apache-2.0 licence of these weights. {held_out} documents were held out by the
hash of their name and never trained on.

## Make it again

```
{command}
```

The documentation is read from where Debian's package `python3.11-doc` puts its sources (`--docs` names another folder).
The same text gives the same tokenizer and the same order of batches; floating point makes the weights differ in detail.
"""


def tokenizer_of(work: Path, documents: list[corpus.Document], vocabulary: int) -> Tokenizer:
    """The tokenizer in `work`, trained first if it is not there yet."""
    path = work / "tokenizer.json"
    if not path.exists():
        corpus.train_tokenizer(documents, vocabulary).save(str(path))
    return Tokenizer.from_file(str(path))


def write_pair(
    out: Path,
    tokenizer: Tokenizer,
    models: Mapping[str, LlamaForCausalLM],
    documents: Sequence[corpus.Document],
    figures: Mapping[str, float],
    command: str,
) -> None:
    """Write out/target and out/draft as checkpoints that transformers loads, and out/README.md, the model card."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=corpus.END_OF_TEXT,
        eos_token=corpus.END_OF_TEXT,
        pad_token=corpus.END_OF_TEXT,
        model_max_length=models["target"].config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    facts: dict[str, object] = {}
    for role, model in models.items():
        model.bfloat16().save_pretrained(out / role)
        fast.save_pretrained(out / role)
        facts[f"{role}_layers"] = model.config.num_hidden_layers
        facts[f"{role}_parameters"] = sum(p.numel() for p in model.parameters())
        facts[f"{role}_megabytes"] = (out / role / "model.safetensors").stat().st_size / 1e6
    config = models["target"].config
    facts |= {"width": config.hidden_size, "vocabulary": config.vocab_size, "context": config.max_position_embeddings}
    facts |= {"python": platform.python_version(), "documents": described(documents), "command": command}
    facts["held_out"] = sum(d.held_out for d in documents)
    (out / "README.md").write_text(CARD.format(**facts, **figures), encoding="utf-8")


def described(documents: Sequence[corpus.Document]) -> str:
    """What the corpus consists of, in words."""
    files, size = Counter(d.kind for d in documents), Counter[str]()
    for document in documents:
        size[document.kind] += len(document.text)
    names = {"library": "the standard library's sources", "tests": "half of its tests", "docs": "its documentation"}
    return "\n".join(f"* {names[kind]}: {files[kind]} files, {size[kind] / 1e6:.1f} MB" for kind in files)
