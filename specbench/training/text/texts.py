"""Texts as a draft reads them: windows of tokens of files and of rows of data sets, one document after the other.

Knows the encoder as a function, and sources; must not know models. No more than a part of a document is in memory.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from specbench.data.longtext import Encode
from specbench.data.prompts import Prompt, PromptSet
from specbench.errors import UsageError
from specbench.training.text.cache_writer import CacheWriter
from specbench.training.text.data_options import Source, Sources
from specbench.training.text.progress import Progress, Watch
from specbench.training.text.shards import Example

SHORTEST = 2  # tokens of a window: one to start from, one to learn


@dataclass(frozen=True)
class Document:
    """A text whose windows are held out together or not at all; it is tokenized when that is asked for."""

    name: str
    category: str
    tokens: Callable[[], Sequence[int]]


def documents(sources: Sources, encode: Encode) -> Iterator[Document]:
    """The documents of all sources, one after the other."""
    for source in sources.each:
        if source.prompts:
            for prompt in source.prompts.prompts:
                yield row_document(source, source.prompts, prompt, encode)
        if source.files:
            for name, text in source.files.parts():
                yield Document(f"{source.label}/{name}", source.title, lambda text=text: encode(text))  # type: ignore[misc]


def row_document(source: Source, prompts: PromptSet, prompt: Prompt, encode: Encode) -> Document:
    """A row of a data set: its prompt, and the answer to it if the row has one."""

    def tokens() -> Sequence[int]:
        if prompts.applied is None:
            return encode(joined(prompt.text, prompt.reference))
        return [*prompt.ids, *without_opening(encode, prompt.reference)]

    return Document(source.known_as(prompt), source.category(prompt), tokens)


def joined(prompt: str, answer: str) -> str:
    """A prompt and its answer as one text, with a space between two words."""
    space = " " if answer and not prompt[-1:].isspace() and not answer[0].isspace() else ""
    return f"{prompt}{space}{answer}"


def without_opening(encode: Encode, text: str) -> Sequence[int]:
    """The tokens of a text that goes on after others: without those that open one, such as a BOS."""
    ids, opening = (encode(text) if text else []), encode("")
    return ids[len(opening) :] if ids[: len(opening)] == opening else ids


def windows(document: Document, length: int) -> list[Example]:
    """The tokens of a document, `length` at a time and the last ones; every token but the first of a window is learned.

    Empty where there is too little text.
    """
    ids = document.tokens()
    parts = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [Example(part, 1, document.category, document.name) for part in parts if len(part) >= SHORTEST]


def write_texts(sources: Sources, encode: Encode, writer: CacheWriter, watch: Watch) -> Counter[str]:
    """Write the windows of all documents that are not written yet; returns what was left out, by reason.

    UsageError where there is no text at all.
    """
    length, began, tokens, rows = writer.manifest.origin.length, time.perf_counter(), 0, writer.manifest.rows
    for number, document in enumerate(islice(documents(sources, encode), writer.parts, None), writer.parts + 1):
        examples = windows(document, length)
        writer.append(examples)
        rows, tokens = rows + len(examples), tokens + sum(len(one.ids) for one in examples)
        watch(Progress("documents", number, None, tokens, time.perf_counter() - began))
    left_out = sources.left_out
    if not rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "nothing but white space"
        raise UsageError(
            f"there is no text to learn from in {', '.join(sources.names)} ({reasons}): give data with text"
        )
    return left_out
