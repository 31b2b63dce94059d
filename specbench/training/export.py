"""Writing the trained pair: tokenizer, bfloat16 safetensors and the model card."""

from pathlib import Path

from tokenizers import Tokenizer

from specbench.training import corpus


def tokenizer_of(work: Path, documents: list[corpus.Document], vocabulary: int) -> Tokenizer:
    """The tokenizer in `work`, trained first if it is not there yet."""
    path = work / "tokenizer.json"
    if not path.exists():
        corpus.train_tokenizer(documents, vocabulary).save(str(path))
    return Tokenizer.from_file(str(path))
