"""The text of the shipped pair: the sources and the documentation of the Python that runs this module."""

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
HELD_OUT = 0.02  # share of the documents that no weight ever sees
SMALLEST, LARGEST = 200, 400_000  # bytes: stubs teach nothing, generated tables drown the rest
Ids = NDArray[np.uint16]


@dataclass(frozen=True)
class Document:
    """One file of the corpus: `kind` is library, tests or docs; `name` is relative to the root of its kind."""

    kind: str
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the document is kept for evaluation: decided by its name, so the same on every machine."""
        return hashlib.sha256(self.name.encode()).digest()[0] < 256 * HELD_OUT


def documentation_roots() -> list[Path]:
    """Folders in which distributions put the sources of Python's documentation (Debian: package `python3.11-doc`)."""
    return sorted(Path("/usr/share/doc").glob("python3*/html/_sources"))


def read_corpus(docs: list[Path]) -> list[Document]:
    """All documents of this Python, in a fixed order: the standard library, its tests, the documentation."""
    library = Path(sysconfig.get_paths()["stdlib"])
    documents = list(_read("library", library, "*.py"))
    for root in docs:
        documents += _read("docs", root, "*.rst*")
    return documents


def _read(kind: str, root: Path, pattern: str) -> Iterator[Document]:
    for path in sorted(root.rglob(pattern)):
        parts = path.relative_to(root).parts
        if "site-packages" in parts or not SMALLEST <= path.stat().st_size <= LARGEST:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # encoding fixtures of the test suite are bytes, not text
        tests = kind == "library" and any(part in {"test", "tests", "idle_test"} for part in parts)
        if tests and hashlib.sha256(path.name.encode()).digest()[1] % 2:
            continue  # the tests are larger than the library itself and repeat themselves
        yield Document("tests" if tests else kind, path.relative_to(root).as_posix(), _clean(kind, text))


def _clean(kind: str, text: str) -> str:
    """Documentation without reStructuredText roles and link targets, so that it reads as prose."""
    if kind != "docs":
        return text
    text = re.sub(r":[\w:+-]+:`[!~]?([^`<]*?)(?:\s*<[^>`]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^>`]*>`_+", r"\1", text)
    text = re.sub(r"^\.\. (index|_)[^\n]*\n(?:[ \t]+[^\n]*\n)*", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text)


def train_tokenizer(documents: list[Document], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer of `vocabulary` tokens; id 0 ends a text. Any string can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents if not d.held_out), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document]) -> tuple[Ids, Ids]:
    """(training ids, held-out ids): documents in a shuffled but fixed order, each ended by id 0."""
    order = np.random.default_rng(0).permutation(len(documents))
    shuffled = [documents[i] for i in order]
    encoded = tokenizer.encode_batch([d.text for d in shuffled])

    def stream(held_out: bool) -> Ids:
        rows = [[*e.ids, 0] for d, e in zip(shuffled, encoded, strict=True) if d.held_out == held_out]
        return np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows])

    return stream(False), stream(True)


def windows(ids: Ids, rows: int, length: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """[rows, length + 1] windows at random places of `ids`; the same seed gives the same windows."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - length - 1, size=rows)
    return np.stack([ids[s : s + length + 1] for s in starts]).astype(np.int64)
