"""What a verdict is about: which cells answer one question, in what words it is put, and what they leave open.

Knows the columns of results.csv, as numbers or as text; must not know what the answer is.
"""

from collections.abc import Sequence

from specbench.settings import part
from specbench.spec import RunSpec
from specbench.wording import Row, clean, text_in

# Cells that differ in nothing of this answer the same question, with different methods, schedules and K.
ASKED = tuple(setting.column for setting in part("question", RunSpec))
QUESTION = ("schema_version", *ASKED, "device_name", "fingerprint", "prompts_sha256")
SYNTHETIC = "shows what this engine makes of that acceptance, not what the pair accepts"


def chat_of(row: Row) -> str:
    """In which chat template prompts were read; empty for a model that has none."""
    template = text_in(row, "chat_template_resolved")
    words = {"": "", "none": "", "own": "in its chat template", "not applied": "without its chat template"}
    return words.get(template, f"in the chat template {clean(template, 300)}")


def precision(row: Row) -> str:
    """The type that a cell computes in, and the roles whose weights were quantised after loading."""
    roles = {"target": text_in(row, "quantize"), "draft": text_in(row, "draft_quantize")}
    quantised = [f"{role} {kind}" for role, kind in roles.items() if kind]
    return ", ".join([text_in(row, "dtype_resolved") or text_in(row, "dtype"), *quantised])


def pair_of(row: Row) -> tuple[str, ...]:
    return tuple(text_in(row, name) for name in ("target", "draft", "acceptance"))


def gaps(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the rows of a pair do not cover."""

    def known(column: str) -> str:
        values = (text_in(row, column).removesuffix(".0") for row in rows)
        return ", ".join(dict.fromkeys(value for value in values if value))

    others = {"temperatures": "temperature", "data sets": "dataset", "devices": "device_name"}
    named = {what: values for what, column in others.items() if (values := known(column))}
    batches = "batch > 1" if known("batch") in ("", "1") else f"batch other than {known('batch')}"
    return (batches, *(f"{what} other than {values}" for what, values in named.items()))
