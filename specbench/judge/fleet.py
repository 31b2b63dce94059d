"""Models of servers under load: the engines of all methods and the baseline, from cells at several batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.errors import UsageError
from specbench.judge.advice import QUESTION, is_served
from specbench.theory.fleet import Engine
from specbench.wording import clean, grouped, number_in, text_in

NEEDED = ("batch", "k", "tokens_per_round", "baseline_step_ms", "round_ms", "baseline_prefill_ms", "prefill_ms")
SAME = tuple(name for name in QUESTION if name != "batch")
METHOD = ("method", "k", "schedule", "confidence")
STEPS = {"": "round_ms", "baseline_": "baseline_step_ms"}
ROUNDS = {"": "rounds", "baseline_": "baseline_tokens"}  # a baseline step emits one token

Row = Mapping[str, str]


@dataclass(frozen=True)
class Arm:
    """A method on a data set; engine: None without speculation; cell: the one at the smallest of the batches."""

    dataset: str
    name: str
    engine: Engine
    batches: tuple[int, ...]
    cell: str


def arms(rows: Sequence[Row], slots: int | None) -> list[Arm]:
    """The baseline of every question, followed by its methods.

    UsageError if no method was measured at two batches, or more slots are requested than rows were measured.
    Cells with arrival times are left out, as the number of rows in their steps is unknown.
    """
    found: list[Arm] = []
    closed = [row for row in rows if number_in(row, "arrivals") is None and number_in(row, "batch") is not None]
    for question in grouped(closed, lambda row: tuple(text_in(row, name) for name in SAME)):
        methods = grouped(question, lambda row: tuple(text_in(row, name) for name in METHOD))
        cells = [{int(number_in(row, "batch") or 0): row for row in some} for some in methods]
        several = [dict(sorted(some.items())) for some in cells if len(some) > 1]
        found += [arm for number, some in enumerate(several) for arm in of_method(some, slots, number == 0)]
    if not found:
        raise UsageError(
            "no method of this run was measured at several batches, and the cost of more rows is needed for servers "
            "under load: make a run with --batch 1,2,4,8"
        )
    return found


def of_method(rows: Mapping[int, Row], slots: int | None, first: bool) -> list[Arm]:
    """A method, preceded by the baseline if it is the first."""
    largest, (smallest, row) = max(rows), next(iter(rows.items()))
    if slots is not None and not smallest <= slots <= largest:
        raise UsageError(f"--slots {slots}: measured were batches from {smallest} to {largest}")
    common = (tuple(rows), text_in(row, "cell"))
    dataset, most = clean(text_in(row, "dataset"), 60), slots or largest
    plain = Engine(curve(rows, "baseline_"), (1.0,), value(row, "baseline_prefill_ms") / 1000, most)
    drafts = Engine(curve(rows, ""), chances(row), value(row, "prefill_ms") / 1000, most)
    arm = Arm(dataset, f"{clean(text_in(row, 'method'), 60)} K{int(value(row, 'k'))}", drafts, *common)
    return [Arm(dataset, "baseline", plain, *common), arm] if first else [arm]


def curve(rows: Mapping[int, Row], arm: Literal["", "baseline_"]) -> tuple[tuple[int, float], ...]:
    """Seconds of a step or round of an arm by its number of rows, without idle ones, which share its time equally.

    If an engine reports no prefill, its seconds include it; it is then taken from the smallest batch.
    """
    first, found = next(iter(rows.values())), []
    for batch, row in rows.items():
        step, prefill = value(row, STEPS[arm]), value(row, f"{arm}prefill_ms")
        if prefill == 0 and (apart := value(first, f"{arm}prefill_ms")):
            steps = value(row, ROUNDS[arm])
            step -= apart / (steps / (value(row, "prompts") * (number_in(row, "repeat") or 1)))
        if step <= 0:
            raise UsageError(
                f"cell {clean(text_in(row, 'cell'), 20)}: its prompts one by one would take longer than all of it did: "
                "make a run with more --max-new-tokens"
            )
        idle = 0.0 if is_served(row) else number_in(row, f"{arm}rows_idle") or 0.0  # requests have times of their own
        found.append((batch, step * batch * (1 - idle) / 1000))
    return tuple(found)


def value(row: Row, column: str) -> float:
    """A positive number (0 is allowed for prefill and k). UsageError for anything else."""
    found = number_in(row, column)
    if found is None or found < 0 or (found == 0 and "prefill" not in column and column != "k"):
        raise UsageError(f"cell {clean(text_in(row, 'cell'), 20)}: {column} is {clean(row.get(column, ''), 40)!r}")
    return found


def chances(row: Row) -> tuple[float, ...]:
    """The probabilities of 1, 2, … tokens in a round.

    They follow from acceptance by position if that matches the tokens per round; else two integers share them.
    """
    tokens = max(value(row, "tokens_per_round"), 1.0)
    there, places = [1.0], 1
    while (at := number_in(row, f"acceptance_at_{places}")) is not None:
        there.append(there[-1] * min(max(at, 0.0), 1.0))
        places += 1
    if abs(sum(there) - tokens) <= 0.05 * tokens:
        return tuple(here - after for here, after in zip(there, [*there[1:], 0.0], strict=True))
    whole = int(tokens)
    return (*[0.0] * (whole - 1), 1 - (tokens - whole), tokens - whole)


def lengths(samples: Sequence[Row], arm: Arm, mean: float | None) -> list[int]:
    """Answer lengths: the baseline's in the cell of an arm, or scaled to a mean. UsageError without any."""
    own = (number_in(row, "baseline_tokens") for row in samples if text_in(row, "cell") == arm.cell)
    found = [number for number in own if number]
    if not found:
        raise UsageError(f"samples.csv has no answers of cell {clean(arm.cell, 20)}: give the folder of a whole run")
    stretch = 1.0 if mean is None else mean * len(found) / sum(found)
    return [max(1, round(number * stretch)) for number in found]
