"""More prompts for a finished run: what was measured is kept, and the new prompts are decoded after it.

Knows runs, pairs and their prompts; must not know how anything is decoded or shown. May import torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.errors import UsageError
from specbench.jobs.pairs import refuse_unusable, same_ground, usable
from specbench.measure import grid
from specbench.measure.group import Past
from specbench.measure.pair import Pair, prepared
from specbench.results.folder import RunFolder
from specbench.results.reading import Run
from specbench.spec import RunSpec
from specbench.wording import clean_path


def grow(folder: RunFolder, run: Run, limit: int) -> None:
    """Give all cells of a run `limit` prompts of each data set. UsageError, with nothing changed, where that cannot be:
    where new prompts would change how earlier ones were decoded, or there are no more of them."""
    before = limit_of(run, limit)
    refuse_dependent(run, folder.past)
    groups = grid.by_pair(run.specs)
    more = [one for group in groups for one in pair_columns(group, run, folder.past, before, limit)]
    if not any(new for new, _, _ in more):
        raise UsageError(f"--limit {limit}: the data sets of {clean_path(run.path)} have no more prompts that fit")
    folder.grow(before, limit, {key: columns for _, key, columns in more})


def limit_of(run: Run, limit: int) -> int:
    """The limit that all cells have had so far."""
    limits = {spec.limit for spec in run.specs}
    if len(limits) > 1 or None in limits:
        said = "was given all prompts of its data sets" if limits == {None} else "has cells with several limits"
        raise UsageError(f"{clean_path(run.path)} {said}: --limit adds none to it; start a new run")
    (before,) = (one for one in limits if one is not None)
    if limit <= before:
        where = clean_path(run.path)
        raise UsageError(f"--limit {limit}: {where} has {before} already; give a larger one to add prompts")
    return before


def refuse_dependent(run: Run, past: Past) -> None:
    """UsageError where how a prompt is decoded depends on the others."""
    for spec in run.specs:
        carries = spec in past and past[spec].resolved.get("carries")
        why = {
            "it decodes prompts in batches": spec.batch > 1,
            "it repeats them": spec.repeat > 1,
            "--until-ci decides how many it takes": spec.until_ci is not None,
            f"{spec.method} learns from prompt to prompt": bool(carries),
        }
        if reasons := [reason for reason, holds in why.items() if holds]:
            raise UsageError(
                f"no prompts can be added to {clean_path(run.path)}: {reasons[0]}, so that the new ones would come "
                "between the others; start a new run"
            )


def pair_columns(
    specs: Sequence[RunSpec], run: Run, past: Past, before: int, limit: int
) -> list[tuple[int, str, Mapping[str, Any]]]:
    """For every cell of a pair: how many prompts are new, its key until now, and its new columns about prompts."""
    grown = [spec.with_(limit=limit) for spec in specs]
    old, new = prepared(specs, run.limits), prepared(grown, [*run.limits, before])
    pairs: list[Pair] = [old, new]
    for pair in pairs:
        refuse_unusable([pair])
    for earlier in usable([old]):
        same_ground(run.description, earlier, past)
    prompts = [pair.prompts for pair in usable(pairs)]
    return [
        (prompts[1][then].turns - prompts[0][now].turns, now.key, prompts[1][then].row())
        for now, then in zip(specs, grown, strict=True)
        if len(prompts) == len(pairs)
    ]
