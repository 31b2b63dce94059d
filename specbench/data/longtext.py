"""Prompts of any length from the shipped prompts or from books: acceptance on random tokens would mean nothing.
They depend on the data set's name, the seed and their number: a larger set begins with a smaller one."""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.data.prompts import digest
from specbench.data.sources import LONG, SHIPPED, DataRow, existing_file, hub_rows, jsonl_rows
from specbench.errors import UsageError
from specbench.wording import clean

Encode = Callable[[str], list[int]]

LENGTH = 1024  # tokens of a prompt without a length, or as many as fit
ROWS, MOST_ROWS = 20, 1000  # prompts without and with the greatest limit
DEPTHS = (50, 10, 90, 30, 70)  # position of the needle in percent of the filler; the first few already differ much
WIDEST = 8  # maximum average characters per token


@dataclass(frozen=True)
class Needle:
    """The fact hidden in the filler and the question at its end; the answer continues the sequence."""

    filler: str
    fact: str
    question: str


# Of some twenty forms the shipped target answers these most often.
NEEDLES = {
    "passkey": Needle(
        filler="code",
        fact="The pass key is {answer}. Remember it." + 3 * " The pass key is {answer}." + "\n",
        question="What is the pass key? The pass key is",
    ),
    "needle": Needle(filler="articles", fact=6 * ">>> pass_key\n{answer}\n", question=">>> pass_key\n"),
}


def is_long(dataset: str) -> bool:
    return dataset.partition(":")[0] in LONG


def of_length(dataset: str, context: int | None) -> str:
    """The name of a data set with a length; UsageError if its name already has one. Other sets have none."""
    if context is None or not is_long(dataset):
        return dataset
    if ":" in dataset:
        raise UsageError(f"--context and data set {clean(dataset)} both set the length of prompts: leave out one")
    return f"{dataset}:{context}"


def long_rows(
    dataset: str, encode: Encode, *, limit: int | None, seed: int, longest: int | None
) -> tuple[list[DataRow], str | None]:
    """`limit` rows (20 by default) with a prompt of at most LENGTH tokens of `encode`, and their revision.

    `dataset` is needle, passkey, longdoc or pg19, with `:LENGTH` or without. Rows with a needle have its
    `answer`. UsageError for a LENGTH that is not a number, exceeds `longest` or leaves no room for the needle.
    """
    kind, length = kind_and_length(dataset, longest)
    if kind == "pg19":
        books, revision = hub_rows(kind)
        order = sorted(range(len(books)), key=lambda row: digest(seed, row))[: limit or ROWS]
        return [{"id": f"pg19/{n}", "text": cut(str(books[n]["text"]), length, encode)} for n in order], revision
    made = (lambda n: document(n, length, encode, seed)) if kind == "longdoc" else hidden(dataset, length, encode, seed)
    return [made(number) for number in range(min(limit or ROWS, MOST_ROWS))], None


def kind_and_length(dataset: str, longest: int | None) -> tuple[str, int]:
    """The kind and the number of tokens in a name."""
    kind, colon, digits = dataset.partition(":")
    fits = LENGTH if longest is None else longest
    if not colon:
        return kind, min(LENGTH, fits)
    if not (digits.isascii() and digits.isdigit() and int(digits[:12]) > 0):
        raise UsageError(f"data set {clean(dataset)}: its LENGTH must be a number of tokens, as in {kind}:{LENGTH}")
    length = int(digits[:12])
    if longest is not None and length > longest:
        raise UsageError(
            f"data set {clean(dataset)} has prompts of {length} tokens, too long for these models: at most {longest} "
            f"leave room for the new tokens; choose {kind}:{max(longest, 1)} or fewer new tokens"
        )
    return kind, length


def hidden(dataset: str, length: int, encode: Encode, seed: int) -> Callable[[int], DataRow]:
    """Rows with a fact hidden in filler, and the beginning of the fact again at the end."""
    kind = dataset.partition(":")[0]
    needle, texts = NEEDLES[kind], documents(NEEDLES[kind].filler)

    def row(number: int) -> DataRow:
        chance, depth = random.Random(f"{kind}:{seed}:{number}"), DEPTHS[number % len(DEPTHS)]
        answer = str(chance.randrange(10_000, 100_000))
        fact, room = needle.fact.format(answer=answer), length
        hay = shuffled(texts, chance, length * WIDEST)
        while room > 0:
            lines = f"{cut(hay, room, encode)}\n".splitlines(keepends=True)
            place = round(len(lines) * depth / 100)
            before, after = "".join(lines[:place]), "".join(lines[place:])
            text = f"{before}{fact}{after}{needle.question}"
            if (over := len(encode(text)) - length) <= 0:
                return {"id": f"{kind}/{number}", "category": f"depth {depth}", "prompt": text, "answer": answer}
            room -= over
        raise UsageError(f"data set {clean(dataset)} has no place for filler: choose a longer one, as {kind}:{LENGTH}")

    return row


def document(number: int, length: int, encode: Encode, seed: int) -> DataRow:
    """Articles or code, alternating, joined to one long text that may end anywhere."""
    name = tuple(SHIPPED)[number % len(SHIPPED)]
    hay = shuffled(documents(name), random.Random(f"longdoc:{seed}:{number}"), length * WIDEST)
    return {"id": f"longdoc/{number}", "category": name, "text": cut(hay, length, encode)}


def documents(name: str) -> list[str]:
    """The texts of a shipped set."""
    rows = jsonl_rows(existing_file(str(Path(SHIPPED[name]))))
    return [str(row.get("prompt") or row["document"]).strip() for row in rows]


def shuffled(texts: Sequence[str], chance: random.Random, most: int) -> str:
    """Texts in random order, repeated in another order until there are `most` characters."""
    found, size = list[str](), 0
    while size < most:
        found += chance.sample(texts, len(texts))
        size += sum(map(len, texts))
    return "\n\n".join(found)[:most]


def cut(text: str, most: int, encode: Encode) -> str:
    """The longest beginning of whole words with at most `most` tokens; empty if no word fits."""
    ends = [word.end() for word in re.finditer(r"\S+", text[: most * WIDEST])]
    fit = bisect_right(ends, most, key=lambda end: len(encode(text[:end])))
    return text[: ends[fit - 1]] if fit else ""


# --- filling ----------------------------------------------------------------------------------------------------------
# Prompts of a requested length from any data set: other texts of the set precede the one that is
# continued. They depend only on data set, seed and row, so that a longer context ends in a shorter one.

BETWEEN = "\n\n"
DRAWN = 512  # texts of a set that are shuffled at a time


@dataclass(frozen=True)
class Filling:
    """Other texts of the set as context before each text. length: maximum tokens of a prompt, counted by `write`."""

    texts: Sequence[str]
    length: int
    seed: int
    write: Encode

    def filled(self, row: int) -> str:
        """The text of a row after as many words of others as fit; alone if none fit."""
        own, before = self.texts[row], self.before(row)
        starts = [word.start() for word in re.finditer(r"\S+", before)][::-1]
        fit = bisect_right(starts, self.length, key=lambda start: len(self.write(f"{before[start:]}{BETWEEN}{own}")))
        return f"{before[starts[fit - 1] :]}{BETWEEN}{own}" if fit else own

    def before(self, row: int) -> str:
        """Other texts in random order, repeated in another one, the first drawn last; there must be at least one.

        They have more characters than a prompt can have.
        """
        chance, found, left = random.Random(f"context:{self.seed}:{row}"), list[str](), self.length * WIDEST
        while left > 0:
            for one in chance.sample(range(len(self.texts)), min(len(self.texts), DRAWN)):
                if one != row and left > 0:
                    found.append(self.texts[one])
                    left -= len(self.texts[one])
        return BETWEEN.join(reversed(found))[-self.length * WIDEST :]


def filling_of(
    dataset: str, texts: Sequence[str], context: int | None, longest: int | None, seed: int, write: Encode
) -> Filling | None:
    """How prompts of a data set reach the context length; None if they need no other texts.

    UsageError for a context that exceeds the models' limit, or that a single text cannot fill.
    """
    if context is None or is_long(dataset):
        return None
    if longest is not None and context > longest:
        raise UsageError(
            f"--context {context} is too long for these models: at most {longest} tokens leave room for the new ones; "
            f"choose a context of at most {longest}, or fewer new tokens"
        )
    if len(texts) == 1:
        raise UsageError(
            f"data set {clean(dataset, 300)} has one text and no others to fill a context of {context} tokens with: "
            "use longdoc, or leave out --context"
        )
    return Filling(texts, context, seed, write)
