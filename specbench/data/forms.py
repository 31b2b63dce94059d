"""The forms that texts of data sets are put into: named, versioned and never changed, for plain text and for chats."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.chat import Chat
from specbench.data.sources import DataRow
from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.wording import clean, clean_path, first_line

# The first of these that a data set has; `messages` and `conversations` hold roles, as chat APIs and ShareGPT do.
COLUMNS = ("prompt", "turns", "messages", "conversations", "conversation", "document", "article", "question",
           "instruction", "problem", "text", "input")  # fmt: skip
FUNCTIONS = ("code", "humaneval")  # data sets of functions to be completed; in a file, `entry_point` tells them


@dataclass(frozen=True)
class Form:
    """A name, and a text in which the name of the column in braces stands for its value."""

    name: str
    text: str

    def filled(self, column: str, value: str) -> str:
        """Text of a data set is data: nothing in it is interpreted."""
        return self.text.replace(f"{{{column}}}", value)


# LayerSkip's form, zero-shot (facebookresearch/LayerSkip, data.py); every other column is a prompt as it stands.
PLAIN = {column: Form("article-summary-1", f"Article: {{{column}}}\nSummary:") for column in ("document", "article")}
# Spec-Bench's words (hemingkx/Spec-Bench, question.jsonl, category summarization).
INSTRUCTIONS = {column: Form("summarize-instruct-1", f"Summarize: {{{column}}}") for column in ("document", "article")}
INSTRUCTIONS |= {column: Form("text", f"{{{column}}}") for column in ("question", "problem")}
# Alpaca's rows: an instruction, and often an `input` that it is about.
PLAIN["instruction"] = INSTRUCTIONS["instruction"] = Form("instruction-input-1", "{instruction}")
# SpecForge's words (sgl-project/SpecForge, specforge/benchmarks), which others use as well.
HUMANEVAL = Form(
    "humaneval-instruct-1",
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```",
)


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


def instruction_form(dataset: str, rows: Sequence[DataRow], column: str) -> Form | None:
    """The form in which rows are messages to a chat model; None of plain text, which is to be continued.

    Messages are conversations (a column `turns`, or lists in any other), articles, questions, functions to complete.
    """
    if column == "turns" or any(isinstance(row.get(column), list) for row in rows):
        return Form("turns", f"{{{column}}}")
    if column == "prompt" and (dataset in FUNCTIONS or any("entry_point" in row for row in rows)):
        return HUMANEVAL
    return INSTRUCTIONS.get(column)


def plain_form(column: str) -> Form:
    """The form of a prompt that is continued as it stands."""
    return PLAIN.get(column, Form("text", f"{{{column}}}"))


def given_form(rows: Sequence[DataRow], column: str, template: str) -> Form:
    """The form of --template. Exactly one column may stand in it: a second one would remain as its bare name."""
    hole = f"{{{column}}}"
    if not encodable(template):
        raise UsageError("the template is not UTF-8 text")
    if hole not in template:
        raise UsageError(f"the template does not contain {clean(hole)}, the column of the prompts")
    others = {key for row in rows for key in row if key != column and f"{{{key}}}" in template}
    if others:
        raise UsageError(
            f"the template names more than one column: {clean(column)}, {clean(', '.join(sorted(others)))}"
        )
    return Form("template", template)


def encodable(text: str) -> bool:
    """Whether a text is Unicode: lone surrogates are not, and tokenizers refuse them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- chats ------------------------------------------------------------------------------------------------------------

NONE, ALWAYS = "none", "always"  # of --chat-template; None is auto, anything else the path of a file
OWN = "own"
LARGEST = 1 << 20  # bytes of a template
ROLES = ("user", "assistant")  # in turn
PROBE = ("Hello",)


@dataclass(frozen=True)
class ChatSettings:
    """What was asked for, and the chat of the tokenizer (None: the engine has none). answer: its tokens at most."""

    chat: Chat | None = None
    template: str | None = None
    system: str | None = None
    thinking: bool | None = None
    answer: int = 0

    @property
    def own(self) -> str | None:
        """The tokenizer's own template."""
        return self.chat.own if self.chat else None


@dataclass(frozen=True)
class Applied:
    """A chat template as prompts are written in it. source: `own`, or the name of the file."""

    source: str
    template: str
    system: str | None = None
    thinking: bool | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()

    @property
    def switches(self) -> Mapping[str, bool]:
        """Families of models have two names for it; a template does not see the one that it does not ask for."""
        return {} if self.thinking is None else {"enable_thinking": self.thinking, "thinking": self.thinking}

    def ids(self, chat: Chat, said: Sequence[str]) -> list[int]:
        """The prompt after what was said: the texts of user and model in turn, the user's first and last."""
        first = [{"role": "system", "content": self.system}] if self.system is not None else []
        rest = [{"role": ROLES[number % 2], "content": text} for number, text in enumerate(said)]
        return chat.ids(self.template, [*first, *rest], self.switches)


def applied_to(name: str, asked: ChatSettings, instructions: bool) -> Applied | None:
    """The chat template of a data set; None where its prompts are plain text.

    By itself it is the tokenizer's own, where there is one and the rows are `instructions`. UsageError
    for a template that is not there or not usable, and for a system message or a switch without a place.
    """
    found = chosen_template(asked, instructions)
    if found is None:
        if asked.system is not None or asked.thinking is not None:
            option = "--system" if asked.system is not None else "--thinking"
            raise UsageError(f"{option} needs a chat template, and the prompts of {name} {why_plain(asked)}")
        return None
    if asked.chat is None:
        raise UsageError("--chat-template: this backend takes plain text only")
    applied = Applied(*found, asked.system, asked.thinking)
    check_places(asked.chat, applied)
    return applied


def chosen_template(asked: ChatSettings, instructions: bool) -> tuple[str, str] | None:
    """Where the template comes from, and its text."""
    if asked.template == NONE or (asked.template is None and not instructions):
        return None
    if asked.template not in (None, ALWAYS):
        return clean(asked.template, 300), read_template(Path(os.path.expanduser(str(asked.template))))
    if asked.own is None and asked.template == ALWAYS:
        raise UsageError("--chat-template always: the target's tokenizer has no chat template; give a file with one")
    return (OWN, asked.own) if asked.own is not None else None


def why_plain(asked: ChatSettings) -> str:
    if asked.template == NONE:
        return "are plain text with --chat-template none"
    if asked.own is None:
        return "are plain text, as the target's tokenizer has no chat template: give a file with --chat-template"
    return "are plain text to be continued: add --chat-template always"


def read_template(path: Path) -> str:
    """The template in a file."""
    try:
        return read_whole(path, LARGEST).decode()
    except OSError as error:
        reason = error.strerror or first_line(error)
    except ValueError as error:  # bytes that are no text, a path that none can have
        reason = first_line(error)
    raise UsageError(
        f"cannot read the chat template {clean_path(path)} ({reason}): --chat-template takes auto, none, always, or a "
        "file"
    )


def check_places(chat: Chat, applied: Applied) -> None:
    """UsageError for a system message that the template does not write, and for a switch that changes nothing."""
    written = applied.ids(chat, PROBE)
    if applied.system and written == Applied("", applied.template, None, applied.thinking).ids(chat, PROBE):
        raise UsageError("--system: the chat template has no place for a system message; leave it out")
    if applied.thinking is not None:
        other = Applied("", applied.template, applied.system, not applied.thinking).ids(chat, PROBE)
        if written == other:
            raise UsageError("--thinking: the chat template has no such switch (enable_thinking); leave it out")
