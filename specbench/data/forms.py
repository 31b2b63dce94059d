"""The forms that texts of data sets are put into: named and versioned, for plain text and for messages of a chat.

Knows columns; must not know templates of models. A form is never changed: a better one has another number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.data.readers import DataRow
from specbench.errors import UsageError
from specbench.wording import clean

# The first of these that a data set has; `messages` and `conversations` hold roles, as chat APIs and ShareGPT do.
COLUMNS = ("prompt", "turns", "messages", "conversations", "document", "article", "text")
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
SUMMARIZE = {column: Form("summarize-instruct-1", f"Summarize: {{{column}}}") for column in ("document", "article")}
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

    Messages are conversations (a column `turns`, or lists in any other), articles, and functions to be completed.
    """
    if column == "turns" or any(isinstance(row.get(column), list) for row in rows):
        return Form("turns", f"{{{column}}}")
    if column == "prompt" and (dataset in FUNCTIONS or any("entry_point" in row for row in rows)):
        return HUMANEVAL
    return SUMMARIZE.get(column)


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
