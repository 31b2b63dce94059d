"""Names of workloads that change their topic: some data sets one after the other, and the first one again at the end.

Pure; knows names. Must not know rows or prompts.
"""

from collections.abc import Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.wording import clean

NAME = "shift"
SHIPPED = ("code", "articles")  # what `shift` alone stands for
BETWEEN = ","


def joined(datasets: Sequence[str]) -> str:
    """The name of a workload of these data sets; UsageError where they are no two different ones, or named oddly."""
    if len(set(datasets)) < max(len(datasets), 2):
        raise UsageError("--shift goes from one data set to another: name two or more different ones with --dataset")
    for name in datasets:
        if sets_of(name) != (name,):
            raise UsageError(f"--shift: {clean(name)} is a shifted workload already: name data sets")
        if BETWEEN in name:
            raise UsageError(f"--shift: {clean(name, 300)}: a comma would end its name here; rename the file")
    return f"{NAME}:{BETWEEN.join(datasets)}"


def sets_of(dataset: str) -> tuple[str, ...]:
    """The data sets of a workload in the order in which they first come; of any other name itself."""
    if dataset == NAME:
        return SHIPPED
    kind, _, names = dataset.partition(":")
    return tuple(names.split(BETWEEN)) if kind == NAME else (dataset,)


def is_shift(dataset: str) -> bool:
    return sets_of(dataset) != (dataset,)


def phases_of(sets: Sequence[str]) -> list[str]:
    """What comes after what: all of them, and the first one once more."""
    return [*sets, sets[0]]


def label(number: int, dataset: str) -> str:
    """The name of a phase as a category, from its number: they are sorted as they come, and of a file only its name."""
    return f"{number} {Path(dataset).stem if ':' in dataset else dataset}"
