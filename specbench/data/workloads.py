"""The prompts of a data set, or of a workload that shifts from one data set to another.

Knows prompts and the names of workloads; must not know rows, tokens or models.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.data import shifts
from specbench.data.loading import load_prompts
from specbench.data.longtext import Encode
from specbench.data.prompts import Prompt, PromptSet, fingerprint
from specbench.errors import UsageError


def load(dataset: str, encode: Encode, *, limit: int | None, **how: Any) -> PromptSet:
    """The prompts of a data set as `load_prompts` gives them, or those of a workload phase by phase, `limit` in all.

    The phases have equal parts of the limit. The category of a prompt is its phase; the last phase is of the data set
    of the first and has its other prompts: every second one, so that both halves are of one kind.
    """
    if not shifts.is_shift(dataset):
        return load_prompts(dataset, encode, limit=limit, **how)
    sets = check(dataset)
    shares = shared(limit, len(sets) + 1)
    wanted = [shares[0] + shares[-1], *shares[1:-1]] if shares else [None] * len(sets)
    found = [load_prompts(name, encode, limit=most, **how) for name, most in zip(sets, wanted, strict=True)]
    first = found[0].prompts
    if len(first) < 2:
        raise UsageError(f"data set {dataset}: {sets[0]} comes twice with different prompts, and has only one")
    phases = [first[::2], *(one.prompts for one in found[1:]), first[1::2]]
    return as_one(dataset, found, phases)


def check(dataset: str) -> tuple[str, ...]:
    """The data sets of a workload; UsageError for a name that nobody could have made with --shift."""
    sets = shifts.sets_of(dataset)
    shifts.joined(sets)
    return sets


def shared(limit: int | None, phases: int) -> list[int]:
    """How many prompts every phase has; none where all are taken."""
    if limit is None:
        return []
    if limit < phases:
        raise UsageError(f"a limit of {limit} leaves a phase without prompts: this workload needs at least {phases}")
    return [limit // phases + (phase < limit % phases) for phase in range(phases)]


def as_one(dataset: str, found: Sequence[PromptSet], phases: Sequence[Sequence[Prompt]]) -> PromptSet:
    """One set of all phases. What some of its data sets have and others lack (a chat template) is said to be there."""
    named = zip(shifts.phases_of(shifts.sets_of(dataset)), phases, strict=True)
    prompts = tuple(
        replace(prompt, id=f"{number}:{prompt.id}", category=shifts.label(number, name))
        for number, (name, some) in enumerate(named, start=1)
        for prompt in some
    )
    applied = next((one.applied for one in found if one.applied), None)
    return PromptSet(
        dataset,
        prompts,
        sum(one.read for one in found),
        dict(sum((Counter(one.rejected) for one in found), Counter())),
        fingerprint(prompts, applied),
        ", ".join(one.revision for one in found if one.revision) or None,
        ", ".join(dict.fromkeys(one.form for one in found)),
        applied,
        any(one.instruct for one in found),
    )
