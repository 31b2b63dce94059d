"""How a cell that chose its method did beside the best of its choices, where that was measured on the same prompts.

Knows the columns of results.csv, as numbers or as text; must not know how a choice is made.
"""

from collections.abc import Sequence

from specbench.judge.candidates import flaw
from specbench.judge.questions import QUESTION
from specbench.spec import BASELINE, CHOOSING
from specbench.wording import Row, number_in, text_in

SAME = (*QUESTION, "prompts")


def best_fixed(row: Row, rows: Sequence[Row]) -> tuple[str, float] | None:
    """The fastest of the choices of a cell that were measured beside it by themselves, and the regret: by what share
    its tokens took longer. None where none was measured. The baseline has been measured always."""
    speedup = number_in(row, "speedup")
    if text_in(row, "method") != CHOOSING or not speedup:
        return None
    beside = [one for one in rows if one is not row and not flaw(one) and same_question(one, row)]
    names = text_in(row, "choices").split(",")
    rates = {name: number_in(one, "speedup") or 0.0 for one in beside if (name := choice_of(one)) in names}
    if not rates:
        return None
    rates |= {BASELINE: 1.0} if BASELINE in names else {}
    best = max(rates, key=rates.__getitem__)
    return best, rates[best] / speedup - 1


def same_question(one: Row, other: Row) -> bool:
    return all(text_in(one, name) == text_in(other, name) for name in SAME)


def choice_of(row: Row) -> str:
    """A cell as `--choices` names it; empty for one that has another schedule."""
    constant = text_in(row, "schedule") in ("", "constant")
    return f"{text_in(row, 'method')}:{text_in(row, 'k')}" if constant else ""
