"""The body of `specbench train boost`: drafts one after the other, each beside those before it.

Knows the order of drafts and what is said of them; must not know how one is trained.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.jobs import train_record
from specbench.jobs.output import say
from specbench.jobs.train import Draft, console, locked, trained, unseen
from specbench.jobs.train_data import CACHE, Teaching, teaching
from specbench.show.records import Format, print_records
from specbench.training import processes
from specbench.training.evaluation import Figures, Judge, chosen, sampled
from specbench.training.recipe import Recipe
from specbench.wording import clean_path

NAMES = ("draft", "second", "third")  # of the drafts in the method boosted-merge


def start(asked: Draft, drafts: int, style: Format, quiet: bool) -> None:
    """Train so many drafts into folders 1, 2, … of the output and print what they are worth alone and together."""
    err = console(quiet)
    source = replace(asked.source, cache=asked.source.cache or asked.output / CACHE)
    with locked(asked.output):
        with processes.first_before_others():
            train_record.of(asked.output, {**asked.identity, "drafts": drafts})
            given = teaching(asked.settings, source, asked.recipe, asked.output, err, asked.start.check, again=True)
        rows, earlier = [], list[Any]()
        for number in range(1, drafts + 1):
            student = one(replace(asked, source=source), number, given, earlier, err)
            rows.append({"draft": number, **worth(student, given, asked.recipe, earlier)})
            earlier.append(student)
    if processes.first():
        print_rows(rows, asked, style)
        say(err, commands(asked, drafts, unseen(Path(clean_path(asked.output)) / "1", given)))


def one(asked: Draft, number: int, given: Teaching, earlier: Sequence[Any], err: Console) -> Any:
    """The draft of a number, beside the earlier ones, with a seed of its own."""
    recipe = asked.recipe.model_copy(update={"seed": asked.recipe.seed + number - 1})
    part = replace(asked, output=asked.output / str(number), recipe=recipe)
    say(err, [f"draft {number}:"])
    return trained(part, given, err, tuple(earlier))[0]


def worth(student: Any, given: Teaching, recipe: Recipe, earlier: Sequence[Any]) -> dict[str, Any]:
    """What a draft is worth by itself on the held-out text, and of how many tokens it or an earlier one is right."""
    held_out = chosen(given.cache.held_out, recipe.held_out)

    def judged(how: Recipe, beside: Sequence[Any]) -> Figures:
        return Judge(given.teacher, held_out, how, sampled(given.cache, how), beside).figures(student)[0]

    together = judged(recipe.model_copy(update={"temperature": 0.0}), earlier)
    return {**asdict(judged(recipe, ())), "together": together.alpha}


def print_rows(rows: Sequence[dict[str, Any]], asked: Draft, style: Format) -> None:
    short = [
        {
            "draft": row["draft"],
            "alpha": f"{row['alpha']:.3f}",
            f"tokens per round at K {asked.recipe.k}": f"{row['accepted']:.2f}",
            "tokens that it or an earlier draft likes best": f"{row['together']:.1%}",
        }
        for row in rows
    ]
    print_records(rows, {"held-out text": short}, style)


def commands(asked: Draft, drafts: int, prompts: str) -> list[str]:
    """How the drafts are run together, on some prompts; as many as boosted-merge names."""
    folder, target = clean_path(asked.output), asked.settings.get("target", "demo")
    places = [str(Path(folder) / str(number)) for number in range(1, drafts + 1)]
    models = " ".join(f"--model {name}={place}" for name, place in zip(NAMES[1:], places[1:], strict=False))
    lines = [f"specbench run --target {target} --draft {places[0]} {models} --method boosted-merge{prompts}"]
    if drafts != len(NAMES):
        lines = [f"boosted-merge names {len(NAMES)} drafts: for {drafts}, copy configs/methods/boosted-merge.yaml"]
    return lines
