"""From rows of data to texts: what is a prompt in a row, how it is called, and why a row cannot be used.

Knows columns and forms; must not know tokens or chats. A row that cannot be used is counted with its reason.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from specbench.data.forms import Form, encodable
from specbench.data.readers import DataRow
from specbench.wording import clean

IDS = ("task_id", "id", "question_id", "prompt_id")
EMPTY, NOT_TEXT, SYSTEM = "empty", "not text", "system messages (which --system gives to all prompts)"
USERS, MODELS = ("user", "human"), ("assistant", "gpt", "model")  # the roles of chat APIs and of ShareGPT
# Where a row has an answer to its prompt: HumanEval, XSum, CNN/DailyMail, instruction data sets, Spec-Bench.
REFERENCES = ("canonical_solution", "summary", "highlights", "completion", "response", "answer", "output", "reference")
DENSEST = 64  # characters of a token, on average over a prompt: text has about four, long runs of spaces up to this


@dataclass(frozen=True)
class TextRow:
    """A row with text, not yet tokenized. turns: what is said to the model, one after the other; at least one.

    reference: the answer to the first turn that the row brings along, empty where it has none.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    reference: str = ""


def surely_longer(text: str, longest: int | None) -> bool:
    """Whether a text has more than `longest` tokens by its characters alone, told before minutes of tokenizing."""
    return longest is not None and len(text) > DENSEST * max(longest, 0)


def text_rows(rows: Sequence[DataRow], column: str, form: Form, rejected: Counter[str]) -> list[TextRow]:
    """The usable rows in the form; the others are counted in `rejected`."""
    found = []
    for row, identity in zip(rows, identities(rows), strict=True):
        first, *later = turns_in(row.get(column))
        if reason := objection(first):
            rejected[reason] += 1
            continue
        if left_out := roles(row.get(column)).count("system"):
            rejected[SYSTEM] += left_out
        turns = [first, *takewhile(lambda turn: not objection(turn), later)]
        said = tuple(form.filled(column, str(turn)) for turn in turns)
        found.append(TextRow(identity, category(row), said, reference(row, column)))
    return found


def turns_in(value: object) -> list[object]:
    """What a cell says to the model: a conversation is a list of turns, or of messages with roles."""
    if not isinstance(value, list):
        return [value]
    if not roles(value):
        return value or [None]
    return said_by(USERS, value) or [None]


def said_by(who: Collection[object], value: object) -> list[object]:
    """What some roles say in a cell of messages, in its order."""
    messages = value if isinstance(value, list) else []
    said = [one for one, role in zip(messages, roles(messages), strict=True) if role in who]
    return [one.get("content", one.get("value")) for one in said]


def roles(value: object) -> list[object]:
    """Who says each message of a cell; empty where it holds no messages with roles."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return []
    return [one.get("role", one.get("from")) for one in value]


def reference(row: DataRow, column: str) -> str:
    """The answer to the first turn that a row brings along: in its conversation, or in a column known for it."""
    if roles(row.get(column)):
        answers = said_by(MODELS, row.get(column))
    else:
        answers = [row.get(name) for name in REFERENCES if name != column]
    first = [one[0] if isinstance(one, list) and one else one for one in answers]
    return next((one for one in first if isinstance(one, str) and not objection(one)), "")


def objection(value: object) -> str | None:
    """Why a value cannot be a prompt, or None."""
    if value is None:
        return EMPTY
    if not isinstance(value, str) or not encodable(value):
        return NOT_TEXT
    return None if value.strip() else EMPTY


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
