"""The forms of texts from data sets: named, versioned and never changed, for plain text and for chats."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.chat import Chat
from specbench.data.sources import DataRow
from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.wording import clean, clean_path, first_line

# The first of these that a data set has; `messages` and `conversations` hold roles, as chat APIs and ShareGPT do.
COLUMNS = ("prompt", "turns", "messages", "conversations", "conversation", "document", "article", "question",
           "instruction", "problem", "question_content", "text", "input")  # fmt: skip
FUNCTIONS = ("code", "humaneval")  # data sets of functions to complete; in a file, `entry_point` marks them
INSTRUCTED = ("mbpp", "tool_call")  # data sets of instructions, in columns that hold plain text elsewhere


@dataclass(frozen=True)
class Form:
    """A name, and a text with the name of a column in braces, to be replaced by its value."""

    name: str
    text: str

    def filled(self, column: str, value: str) -> str:
        """The form with a value filled in; the value is data and never interpreted."""
        return self.text.replace(f"{{{column}}}", value)


# LayerSkip's form, zero-shot (facebookresearch/LayerSkip, data.py); every other column is a prompt as it is.
PLAIN = {column: Form("article-summary-1", f"Article: {{{column}}}\nSummary:") for column in ("document", "article")}
# Spec-Bench's words (hemingkx/Spec-Bench, question.jsonl, category summarization).
INSTRUCTIONS = {column: Form("summarize-instruct-1", f"Summarize: {{{column}}}") for column in ("document", "article")}
INSTRUCTIONS |= {column: Form("text", f"{{{column}}}") for column in ("question", "problem", "question_content")}
# Alpaca's rows: an instruction, and often an `input` that it is about.
PLAIN["instruction"] = INSTRUCTIONS["instruction"] = Form("instruction-input-1", "{instruction}")
# SpecForge's words (sgl-project/SpecForge, specforge/benchmarks), which others use as well.
HUMANEVAL = Form(
    "humaneval-instruct-1",
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```",
)


def chosen_column(name: str, rows: Sequence[DataRow], column: str | None, template: str | None) -> str:
    """The requested column, else the one that the template names, else the first known one."""
    there = dict.fromkeys(key for row in rows for key in row)
    listed = ", ".join(clean(key) for key in list(there)[:20])
    if column is None:
        named = [key for key in there if f"{{{key}}}" in (template or "")]
        known = [key for key in COLUMNS if key in there or not rows]
        if not named + known:
            none = f"none of the columns {', '.join(COLUMNS)}"
            raise UsageError(f"data set {name} has {none}: choose one of its own with --template: {listed}")
        return (named + known)[0]
    if rows and column not in there:
        raise UsageError(f"data set {name} has no column {clean(column)}; it has: {listed}")
    return column


def given_form(rows: Sequence[DataRow], column: str, template: str) -> Form:
    """The form of --template. It must name exactly one column: a second one would remain as its bare name."""
    hole = f"{{{column}}}"
    if not encodable(template):
        raise UsageError("the template is not UTF-8 text")
    if hole not in template:
        raise UsageError(f"the template does not contain {clean(hole)}, the column of the prompts")
    if others := {key for row in rows for key in row if key != column and f"{{{key}}}" in template}:
        listed = f"{clean(column)}, {clean(', '.join(sorted(others)))}"
        raise UsageError(f"the template names more than one column: {listed}")
    return Form("template", template)


def encodable(text: str) -> bool:
    """Whether a text is valid Unicode: tokenizers refuse lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- chats ------------------------------------------------------------------------------------------------------------

NONE, ALWAYS = "none", "always"  # of --chat-template; None is auto, anything else the path of a file
OWN = "own"
LARGEST = 1 << 20  # bytes of a template
ROLES = ("user", "assistant")  # alternating
PROBE = ("Hello",)


@dataclass(frozen=True)
class ChatSettings:
    """The requested chat settings, and the tokenizer's chat (None: the engine has none). answer: its maximum tokens.
    arguments: further ones of the template, as a JSON object."""

    chat: Chat | None = None
    template: str | None = None
    system: str | None = None
    thinking: bool | None = None
    answer: int = 0
    arguments: str | None = None

    @property
    def own(self) -> str | None:
        """The tokenizer's own template."""
        return self.chat.own if self.chat else None


@dataclass(frozen=True)
class Applied:
    """A chat template as applied to prompts. source: `own`, or the name of the file."""

    source: str
    template: str
    system: str | None = None
    thinking: bool | None = None
    arguments: str | None = None

    @property
    def sha256(self) -> str:
        """Of the template; empty for that of a server, which is unknown."""
        return hashlib.sha256(self.template.encode()).hexdigest() if self.template else ""

    def ids(self, chat: Chat, said: Sequence[str], fields: str = "{}") -> list[int]:
        """The prompt after a conversation: texts of user and model in turn, the user's first and last. fields: those
        columns of the row that the chat takes, as a JSON object."""
        first = [{"role": "system", "content": self.system}] if self.system is not None else []
        rest = [{"role": ROLES[number % 2], "content": text} for number, text in enumerate(said)]
        # reasoning has a switch of two names, and a template ignores the one that it does not use
        switches = {} if self.thinking is None else {"enable_thinking": self.thinking, "thinking": self.thinking}
        arguments = {**switches, **json.loads(self.arguments or "{}"), **json.loads(fields)}
        return chat.ids(self.template, [*first, *rest], arguments)


def applied_to(name: str, settings: ChatSettings, instructions: bool) -> Applied | None:
    """The chat template of a data set; None if its prompts are plain text.

    The default is the tokenizer's own template, if it has one and the rows are `instructions`. UsageError
    for a missing or invalid template, and for a system message or a switch that it does not use.
    """
    found = chosen_template(settings, instructions)
    if found is None:
        arguments = settings.arguments if settings.thinking is None else settings.thinking
        given = {"--system": settings.system, "--chat-template-kwargs": arguments}
        if option := next((name for name, value in given.items() if value is not None), None):
            raise UsageError(f"{option} needs a chat template, and the prompts of {name} {why_plain(settings)}")
        return None
    if settings.chat is None:
        raise UsageError("--chat-template: this backend takes plain text only")
    applied = Applied(*found, settings.system, settings.thinking, settings.arguments)
    written = applied.ids(settings.chat, PROBE)
    if applied.system and written == replace(applied, system=None).ids(settings.chat, PROBE):
        raise UsageError("--system: the chat template has no place for a system message; leave it out")
    other = replace(applied, thinking=not applied.thinking)
    if applied.thinking is not None and written == other.ids(settings.chat, PROBE):
        raise UsageError("--chat-template-kwargs thinking: the chat template has no such switch; leave it out")
    return applied


def chosen_template(settings: ChatSettings, instructions: bool) -> tuple[str, str] | None:
    """The source of the template, and its text."""
    if settings.template == NONE or (settings.template is None and not instructions):
        return None
    if settings.template not in (None, ALWAYS):
        path = Path(os.path.expanduser(str(settings.template)))
        try:
            return clean(settings.template, 300), read_whole(path, LARGEST).decode()
        except (OSError, ValueError) as error:  # ValueError: undecodable bytes or an impossible path
            reason = getattr(error, "strerror", None) or first_line(error)
            known = "--chat-template takes auto, none, always, or a file"
            raise UsageError(f"cannot read the chat template {clean_path(path)} ({reason}): {known}") from None
    if settings.own is None and settings.template == ALWAYS:
        raise UsageError("--chat-template always: the target's tokenizer has no chat template; give a file with one")
    return (OWN, settings.own) if settings.own is not None else None


def why_plain(settings: ChatSettings) -> str:
    if settings.template == NONE:
        return "are plain text with --chat-template none"
    if settings.own is None:
        return "are plain text, as the target's tokenizer has no chat template: give a file with --chat-template"
    return "are plain text to be continued: add --chat-template always"
