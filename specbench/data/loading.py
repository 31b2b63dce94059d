"""From a data set to the prompts of a run: their form, chat template and length, and a fair
sample. Unusable rows are counted by reason."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from specbench.data.forms import (
    FUNCTIONS,
    HUMANEVAL,
    INSTRUCTED,
    INSTRUCTIONS,
    PLAIN,
    Applied,
    ChatSettings,
    Form,
    applied_to,
    chosen_column,
    encodable,
    given_form,
)
from specbench.data.longtext import Encode, Filling, filling_of, is_long, long_rows, of_length
from specbench.data.prompts import Prompt, PromptSet, fingerprint, sample
from specbench.data.sources import DataRow, full_name, read_rows
from specbench.errors import UsageError
from specbench.wording import clean

# --- rows -------------------------------------------------------------------------------------------------------------
# From rows of data to texts: the prompt of a row, its name, and the reason why a row cannot be
# used. Unusable rows are counted by reason.

IDS = ("task_id", "id", "question_id", "prompt_id")
EMPTY, NOT_TEXT, SYSTEM = "empty", "not text", "system messages (which --system gives to all prompts)"
USERS, MODELS = ("user", "human"), ("assistant", "gpt", "model")  # the roles of chat APIs and of ShareGPT
# The columns with answers: HumanEval, XSum, CNN/DailyMail, instruction data sets, Spec-Bench.
REFERENCES = ("canonical_solution", "summary", "highlights", "completion", "response", "answer", "output", "reference")
DENSEST = 64  # maximum characters per token over a prompt: text has about four, long runs of spaces up to this


@dataclass(frozen=True)
class TextRow:
    """A row with text, not yet tokenized. turns: the user's messages in order; at least one.

    reference: the answer to the first turn in the row, or empty. row: all of it.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    reference: str = ""
    row: DataRow = field(default_factory=dict)


def surely_longer(text: str, longest: int | None) -> bool:
    """Whether its characters prove a text longer than `longest` tokens, which saves minutes of tokenizing."""
    return longest is not None and len(text) > DENSEST * max(longest, 0)


def text_rows(rows: Sequence[DataRow], column: str, form: Form, rejected: Counter[str]) -> list[TextRow]:
    """The usable rows in the form; the others are counted in `rejected`."""
    found = []
    for row, identity in zip(rows, identities(rows), strict=True):
        value = content(row, column)
        messages = said_by(USERS, value) if roles(value) else value if isinstance(value, list) else [value]
        first, *later = messages or [None]
        if reason := objection(first):
            rejected[reason] += 1
            continue
        if left_out := roles(row.get(column)).count("system"):
            rejected[SYSTEM] += left_out
        turns = [first, *takewhile(lambda turn: not objection(turn), later)]
        said = tuple(form.filled(column, str(turn)) for turn in turns)
        named = row.get("category")
        category = clean(named) if isinstance(named, str | int) and named != "" else "all"
        found.append(TextRow(identity, category, said, reference(row, column), row))
    return found


def content(row: DataRow, column: str) -> object:
    """The value of a row in the column; an instruction is followed by the `input` of its row, as in Alpaca."""
    value, about = row.get(column), row.get("input")
    if column == "instruction" and isinstance(value, str) and not objection(about):
        return f"{value}\n\n{about}"
    return value


def said_by(who: Collection[object], messages: Any) -> list[object]:
    """The messages of some roles among those of a cell, in order."""
    said = [one for one, role in zip(messages, roles(messages), strict=True) if role in who]
    return [one.get("content", one.get("value")) for one in said]


def roles(value: object) -> list[object]:
    """The role of each message of a cell; empty if it holds no messages with roles."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return []
    return [one.get("role", one.get("from")) for one in value]


def reference(row: DataRow, column: str) -> str:
    """The answer to the first turn in a row: from its conversation, or from a known column."""
    if roles(row.get(column)):
        answers = said_by(MODELS, row.get(column))
    else:
        answers = [row.get(name) for name in REFERENCES if name != column]
    first = [one[0] if isinstance(one, list) and one else one for one in answers]
    return next((one for one in first if isinstance(one, str) and not objection(one)), "")


def objection(value: object) -> str | None:
    """Why a value cannot be a prompt; None if it can."""
    if value is None:
        return EMPTY
    if not isinstance(value, str) or not encodable(value):
        return NOT_TEXT
    return None if value.strip() else EMPTY


def identities(rows: Sequence[DataRow]) -> list[str]:
    """The data set's own ids if they are unique, else row numbers from 1."""
    for key in IDS:
        values = [row.get(key) for row in rows]
        ids = [clean(value) for value in values if isinstance(value, str | int) and value != ""]
        if len(set(ids)) == len(rows):
            return ids
    return [f"row-{number}" for number in range(1, len(rows) + 1)]


# --- loading ----------------------------------------------------------------------------------------------------------

TOO_LONG, LATER = "too long", "of the later turns (for want of a chat template)"
STANDIN = "OK."  # placeholder for future answers when only the length around them counts
NO_CHAT = ChatSettings()
NO_FIELDS = "{}"
SLACK = 8  # tokens by which an answer may grow when it is re-tokenised between others

# The messages so far, user and model in turn, and the fields of their row as a JSON object → the ids of the prompt
Write = Callable[[Sequence[str], str], list[int]]


def load_prompts(
    dataset: str,
    encode: Encode,
    *,
    limit: int | None,
    seed: int,
    longest: int | None,
    column: str | None = None,
    template: str | None = None,
    chat: ChatSettings = NO_CHAT,
    context: int | None = None,
) -> PromptSet:
    """The prompts of a data set, or a sample of `limit` of them that is stratified by category and fixed by `seed`.

    `longest` is the maximum number of tokens in a prompt. For a conversation, the prompt of the first turn:
    `prompts.next_turn` gives the others. `context`: the length of every prompt in tokens, see `Filling`.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} leaves no prompts: it must be at least 1")
    dataset = full_name(dataset)
    made = of_length(dataset, context)
    rows, revision = source_rows(made, encode, chat, limit=limit, seed=seed, longest=longest)
    column = chosen_column(clean(dataset, 300), rows, column, template)
    form, applied = written_as(dataset, rows, column, template, chat)
    rejected = Counter[str]()
    found = text_rows(rows, column, form, rejected)
    write = written_in(applied, chat, encode)
    filling = filling_of(
        dataset, [row.turns[0] for row in found], context, longest, seed, lambda text: write([text], NO_FIELDS)
    )
    columns = chat.chat.columns if applied and chat.chat else ()
    to = Tokenizing(write, longest, chat.answer if applied else None, rejected, filling, columns)
    prompts = sample([one.category for one in found], lambda i: to.prompt(found[i], i), limit, seed)
    if not prompts:
        reasons = ": " + ", ".join(f"{count} {reason}" for reason, count in rejected.items()) if rejected else ""
        size = f" of at most {longest} tokens" if longest is not None else ""
        fewer = "; fewer new tokens leave room for longer prompts" if rejected.get(TOO_LONG) else ""
        raise UsageError(
            f"data set {clean(dataset, 300)} has 0 usable rows ({len(rows)} read{reasons}); "
            f"a usable row has text{size} in its column {clean(column)}{fewer}"
        )
    counts, sha256, instruct = dict(rejected), fingerprint(prompts, applied), chat.own is not None
    return PromptSet(dataset, tuple(prompts), len(rows), counts, sha256, revision, form.name, applied, instruct)


def source_rows(
    dataset: str, encode: Encode, chat: ChatSettings, *, limit: int | None, seed: int, longest: int | None
) -> tuple[list[DataRow], str | None]:
    """The rows of a data set and its revision. Long prompts have the requested length including the template."""
    if not is_long(dataset):
        return read_rows(dataset)
    write = written_in(applied_to(clean(dataset, 300), chat, False), chat, encode)
    return long_rows(dataset, lambda text: write([text], NO_FIELDS), limit=limit, seed=seed, longest=longest)


def written_as(
    dataset: str, rows: Sequence[DataRow], column: str, template: str | None, chat: ChatSettings
) -> tuple[Form, Applied | None]:
    """The form of the texts, and the chat template around them."""
    # messages are conversations, articles, questions, functions to complete; others are plain text to continue
    if column == "turns" or any(isinstance(row.get(column), list) for row in rows):
        instruction: Form | None = Form("turns", f"{{{column}}}")
    elif column == "prompt" and (dataset in FUNCTIONS or any("entry_point" in row for row in rows)):
        instruction = HUMANEVAL
    else:
        instruction = Form("text", f"{{{column}}}") if dataset in INSTRUCTED else INSTRUCTIONS.get(column)
    applied = applied_to(clean(dataset, 300), chat, instruction is not None)
    if template is not None:
        return given_form(rows, column, template), applied
    return (instruction if applied else None) or PLAIN.get(column, Form("text", f"{{{column}}}")), applied


def written_in(applied: Applied | None, settings: ChatSettings, encode: Encode) -> Write:
    """The function from messages to tokens: in a chat template, or plain."""
    chat = settings.chat
    if applied is None or chat is None:
        return lambda said, fields: encode(said[0])
    return lambda said, fields: applied.ids(chat, said, fields)


@dataclass(frozen=True)
class Tokenizing:
    """From text rows to prompts. answer: the maximum tokens of an answer; None if later turns are not decoded. columns:
    those of a row that its prompts take besides the messages."""

    write: Write
    longest: int | None
    answer: int | None
    rejected: Counter[str]
    filling: Filling | None
    columns: Collection[str] = ()

    def prompt(self, row: TextRow, number: int) -> Prompt | None:
        """The prompt of a row; None if it cannot be used."""
        first, later = row.turns[0], list(takewhile(lambda turn: not surely_longer(turn, self.longest), row.turns[1:]))
        fields = json.dumps(
            {name: row.row[name] for name in self.columns if row.row.get(name) is not None}, default=str
        )
        reason, ids = self.tokenized(first, fields, self.filling.length if self.filling else self.longest)
        if self.filling and not reason:
            first = self.filling.filled(number)
            ids = tuple(self.write([first], fields))
        if reason:
            self.rejected[reason] += 1
            return None
        found = Prompt(row.id, row.category, first, ids, reference=row.reference, fields=fields)
        if not later or self.answer is None:
            self.rejected.update({LATER: len(later)} if later else {})
            return found
        # of the last turn's prompt, with the earlier answers at their maximum length
        said = [text for turn in (first, *later) for text in (turn, STANDIN)][:-1]
        most = len(self.write(said, fields)) + len(later) * (self.answer + SLACK)
        return replace(found, later=tuple(later), most=most if self.longest is None else min(most, self.longest))

    def tokenized(self, text: str, fields: str, longest: int | None) -> tuple[str, tuple[int, ...]]:
        """The reason why a text cannot be a prompt, or "", and its ids."""
        if surely_longer(text, longest):
            return TOO_LONG, ()
        ids = tuple(int(token) for token in self.write([text], fields))
        return (EMPTY if not ids else TOO_LONG if longest is not None and len(ids) > longest else ""), ids
