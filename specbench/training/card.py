"""The model card of a draft: what it was made from, on which text, and what is accepted of it.

Knows figures and names; must not know networks or how anything was trained.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.training.distil import Point
from specbench.training.evaluation import Figures
from specbench.training.recipe import Recipe
from specbench.wording import literal, verbatim


@dataclass(frozen=True)
class Provenance:
    """Where a draft comes from, in words: of its teacher the name and source, its starting point and shape, its data.

    licence: what the card says of it, as an identifier of the hub where it is known; command: makes it again. what: the
    kind of draft; alpha: over what α is the mean.
    """

    target: str
    source: str
    start: str
    shape: str
    parameters: int
    data: Sequence[str]
    licence: str
    command: str
    what: str = "small language model"
    alpha: str = "tokens"


CARD = """---
license: {licence}
base_model: {base}
tags: [speculative-decoding, draft]
---
# A draft for {target}

A {what} that drafts tokens for {target} in speculative decoding. It was trained to be accepted by that
target, and for nothing else.

| | |
|---|---|
| target | {target} ({source}) |
| begun as | {start} |
| shape | {shape} |
| parameters | {parameters:,} |
| tokens learned | {tokens:,} |
| loss | {loss} |
| judged at | temperature {temperature:g}, lookahead K {k} |

## What is accepted, on held-out text

{figures}

α is the mean of Σ min(p, q) over {alpha}; tokens per round include the one that the target adds.

## Learning curve

{curve}

By category: [curve.csv](curve.csv).

## Data and licence

{data}

Licence: {licence}. It should be that of the target and of the data; whoever publishes these weights checks both.

## Make it again

{command}

Settings: {settings}
"""


def card(
    origin: Provenance, recipe: Recipe, figures: Figures, categories: Mapping[str, Figures], curve: Sequence[Point]
) -> str:
    """The card as Markdown with the front matter that the hub reads."""
    return CARD.format(
        licence=origin.licence,
        base=origin.target,
        target=literal(origin.target),
        source=literal(origin.source),
        start=literal(origin.start),
        shape=literal(origin.shape),
        what=literal(origin.what),
        alpha=origin.alpha,
        parameters=origin.parameters,
        tokens=curve[-1].tokens,
        loss=", then ".join(recipe.losses),
        temperature=recipe.temperature,
        k=recipe.k,
        figures=table(figures, categories),
        curve=points(curve),
        data="\n".join(f"* {literal(line)}" for line in origin.data),
        command=verbatim(origin.command),
        settings=", ".join(f"{name} {value}" for name, value in recipe.model_dump(mode="json").items()),
    )


def table(figures: Figures, categories: Mapping[str, Figures]) -> str:
    """Figures by category, and of all."""
    rows = [*categories.items(), ("all", figures)] if len(categories) > 1 else [("all", figures)]
    lines = [f"| {literal(name)} | {one.tokens:,} | {one.alpha:.3f} | {one.accepted:.2f} |" for name, one in rows]
    return "\n".join(["| category | tokens | α | tokens per round |", "|---|---|---|---|", *lines])


def curve_rows(curve: Sequence[Point]) -> Iterator[dict[str, Any]]:
    """The learning curve as records: of every evaluation one for all text, and one for each category."""
    for point in curve:
        common = {"tokens_learned": point.tokens, "seconds": point.seconds, "loss": point.loss}
        total = Figures(point.alpha, point.accepted, sum(one.tokens for one in point.by_category.values()))
        for name, one in {"all": total, **point.by_category}.items():
            figures = {"alpha": one.alpha, "tokens_per_round": one.accepted, "held_out_tokens": one.tokens}
            yield {"category": name, **common, **figures}


def points(curve: Sequence[Point]) -> str:
    """The evaluations of a run."""
    lines = [
        f"| {point.tokens:,} | {'' if point.loss is None else f'{point.loss:.3f}'} | {point.alpha:.3f} | "
        f"{point.accepted:.2f} |"
        for point in curve
    ]
    return "\n".join(["| tokens learned | loss | α | tokens per round |", "|---|---|---|---|", *lines])
