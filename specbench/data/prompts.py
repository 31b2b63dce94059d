"""From rows of data to the prompts of a run: which column, in which template, how many tokens, and a fair sample.

Knows the encoder as a function and nothing else of models. Text of a data set is data: it replaces a name in the
template and is never interpreted. A row that cannot be used is counted with its reason, never silently used or dropped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.data.longtext import Encode, is_long, long_rows
from specbench.data.readers import DataRow
from specbench.data.sampling import sample
from specbench.data.sources import read_rows
from specbench.errors import UsageError
from specbench.wording import clean

COLUMNS = ("prompt", "turns", "document", "article", "text")  # the first of these that a data set has
TEMPLATES = {  # LayerSkip's form, zero-shot; every other column is a prompt as it stands
    "document": "Article: {document}\nSummary:",
    "article": "Article: {article}\nSummary:",
}
IDS = ("task_id", "id", "question_id", "prompt_id")
EMPTY, NOT_TEXT, TOO_LONG = "empty", "not text", "too long"


@dataclass(frozen=True)
class Prompt:
    id: str
    category: str
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class PromptSet:
    """`rejected` counts empty and not-text rows among all `read`, too long ones among those drawn to meet `limit`."""

    name: str
    prompts: tuple[Prompt, ...]
    read: int
    rejected: Mapping[str, int]
    sha256: str
    revision: str | None

    def in_order(self, rows: Sequence[int]) -> "PromptSet":
        """The same prompts in another order."""
        prompts = tuple(self.prompts[row] for row in rows)
        return replace(self, prompts=prompts, sha256=fingerprint(prompts))


@dataclass(frozen=True)
class TextRow:
    """A row with text, not yet tokenized."""

    id: str
    category: str
    text: str


def load_prompts(
    dataset: str,
    encode: Encode,
    *,
    limit: int | None,
    seed: int,
    longest: int | None,
    column: str | None = None,
    template: str | None = None,
) -> PromptSet:
    """The prompts of a data set, or a sample of `limit` of them that is stratified by category and fixed by `seed`.

    `longest` is the largest admissible number of tokens in a prompt.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} leaves no prompts: it must be at least 1")
    if is_long(dataset):
        rows, revision = long_rows(dataset, encode, limit=limit, seed=seed, longest=longest)
    else:
        rows, revision = read_rows(dataset)
    name = clean(dataset, 300)
    column = chosen_column(name, rows, column, template)
    form = chosen_template(rows, column, template)
    rejected = Counter[str]()
    found = text_rows(rows, column, form, rejected)
    kinds = [candidate.category for candidate in found]
    prompts = sample(kinds, lambda i: tokenized(found[i], encode, longest, rejected), limit, seed)
    if not prompts:
        raise UsageError(nothing_usable(name, len(rows), rejected, column, longest))
    return PromptSet(dataset, tuple(prompts), len(rows), dict(rejected), fingerprint(prompts), revision)


# --- the part of a row that is the prompt ---------------------------------------------------------------------------


def chosen_column(name: str, rows: Sequence[DataRow], column: str | None, template: str | None) -> str:
    """The column asked for, else the one that the template names, else the first that is known."""
    there = dict.fromkeys(key for row in rows for key in row)
    listed = ", ".join(clean(key) for key in list(there)[:20])
    if column is None:
        named = [key for key in there if f"{{{key}}}" in (template or "")]
        known = [key for key in COLUMNS if key in there or not rows]
        if not named + known:
            wanted = ", ".join(COLUMNS)
            raise UsageError(
                f"data set {name} has none of the columns {wanted}: choose --column from its own: {listed}"
            )
        return (named + known)[0]
    if rows and column not in there:
        raise UsageError(f"data set {name} has no column {clean(column)}; it has: {listed}")
    return column


def chosen_template(rows: Sequence[DataRow], column: str, template: str | None) -> str:
    """Exactly one column may stand in a template: a second one would remain in the prompt as its bare name."""
    hole = f"{{{column}}}"
    if template is None:
        return TEMPLATES.get(column, hole)
    if not encodable(template):
        raise UsageError("the template is not UTF-8 text")
    if hole not in template:
        raise UsageError(f"the template does not contain {clean(hole)}, the column of the prompts")
    others = {key for row in rows for key in row if key != column and f"{{{key}}}" in template}
    if others:
        raise UsageError(
            f"the template names more than one column: {clean(column)}, {clean(', '.join(sorted(others)))}"
        )
    return template


def text_rows(rows: Sequence[DataRow], column: str, template: str, rejected: Counter[str]) -> list[TextRow]:
    found = []
    for row, identity in zip(rows, identities(rows), strict=True):
        value = first_turn(row.get(column))
        if reason := objection(value):
            rejected[reason] += 1
            continue
        text = template.replace(f"{{{column}}}", str(value))
        found.append(TextRow(identity, category(row), text))
    return found


def first_turn(value: object) -> object:
    """Of a conversation, the first turn: the later ones reply to answers that do not exist here."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def objection(value: object) -> str | None:
    """Why a value cannot be a prompt, or None. Lone surrogates are not Unicode text, and tokenizers refuse them."""
    if value is None:
        return EMPTY
    if not isinstance(value, str) or not encodable(value):
        return NOT_TEXT
    return None if value.strip() else EMPTY


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def category(row: DataRow) -> str:
    value = row.get("category")
    return clean(value) if isinstance(value, str | int) and value != "" else "all"


def identities(rows: Sequence[DataRow]) -> list[str]:
    """The data set's own ids where they are unique, else row numbers from 1."""
    for key in IDS:
        values = [row.get(key) for row in rows]
        ids = [clean(value) for value in values if isinstance(value, str | int) and value != ""]
        if len(set(ids)) == len(rows):
            return ids
    return [f"row-{number}" for number in range(1, len(rows) + 1)]


def tokenized(candidate: TextRow, encode: Encode, longest: int | None, rejected: Counter[str]) -> Prompt | None:
    ids = tuple(int(token) for token in encode(candidate.text))
    reason = EMPTY if not ids else TOO_LONG if longest is not None and len(ids) > longest else None
    if reason:
        rejected[reason] += 1
        return None
    return Prompt(candidate.id, candidate.category, candidate.text, ids)


# --- how prompts are described --------------------------------------------------------------------------------------


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """sha256 of the token ids as a JSON list of lists: which token stands where, in which prompt, in which order."""
    return hashlib.sha256(json.dumps([prompt.ids for prompt in prompts], separators=(",", ":")).encode()).hexdigest()


def nothing_usable(name: str, read: int, rejected: Mapping[str, int], column: str, longest: int | None) -> str:
    reasons = ": " + ", ".join(f"{count} {reason}" for reason, count in rejected.items()) if rejected else ""
    size = f" of at most {longest} tokens" if longest is not None else ""
    fewer = "; fewer new tokens leave room for longer prompts" if rejected.get(TOO_LONG) else ""
    return (
        f"data set {name} has 0 usable rows ({read} read{reasons}); "
        f"a usable row has text{size} in its column {clean(column)}{fewer}"
    )
