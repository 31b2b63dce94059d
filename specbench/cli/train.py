"""`specbench train`: drafts for a target, made from its own answers or from text."""

from dataclasses import replace
from typing import Annotated

import typer

from specbench.cli.help import Command
from specbench.cli.options import Given, options
from specbench.cli.train_options import ALL, HEAD, TRAINING, USUAL, draft_of, head_of, training_of

train = typer.Typer(help="Train drafts for any target, from its own answers or from text.", no_args_is_help=True)


@train.command(name="draft", cls=Command)
@options(*ALL, usual=USUAL)
def draft(given: Given) -> None:
    """Train a draft on the distributions of a target, and judge it on held-out text.

    Its folder is a checkpoint for --draft from the first evaluation on, and always holds the best draft so far.

    Examples:

    specbench train draft --target demo --output drafts/mine
    """
    from specbench.jobs import train as job

    job.start(draft_of(given), given["format"], given["quiet"])


@train.command(name="head", cls=Command)
@options(*HEAD, usual=USUAL)
def head(given: Given) -> None:
    """Train a head that drafts for a target, from its hidden states or through masks, and judge it on held-out text.

    Its folder goes to --draft; an EAGLE-3 head also to vLLM.

    Examples:

    specbench train head --kind eagle3 --target demo --draft-vocabulary 2048 --output heads/eagle3

    specbench train head --kind medusa --target demo --steps 4 --hours 0.5 --output heads/medusa

    specbench train head --kind mtp --target demo --output heads/mtp

    specbench train head --kind pard --target demo --from demo-draft --output heads/pard
    """
    from specbench.jobs import train as job

    asked = training_of({**given, "keep_states": False}, head_of(given))
    job.start(asked, given["format"], given["quiet"])


@train.command(name="boost", cls=Command)
@options(..., *ALL, usual=USUAL)
def boost(
    given: Given,
    drafts: Annotated[int, typer.Option(min=2, max=16, help="How many.", rich_help_panel=TRAINING)] = 3,
    alike: Annotated[
        bool, typer.Option("--alike", help="Fit all of them to all text, as a control.", rich_help_panel=TRAINING)
    ] = False,
) -> None:
    """Train drafts that complement each other: each where those before it miss the target (SpecInfer).

    They draft side by side in the method boosted-merge. Folder 1, 2, … of --output is one draft each.

    Examples:

    specbench train boost --target demo --drafts 3 --output drafts/boosted
    """
    from specbench.jobs import train as job

    job.boost(replace(draft_of(given), boosted=not alike), drafts, given["format"], given["quiet"])
