"""`specbench trace`: one decode token by token: what was drafted, accepted, rejected and put in its place."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.options import OUTPUT, OWN, PAIR, SAMPLING, Given, Option, options, setting, settings_in
from specbench.jobs.asked import with_ks
from specbench.jobs.parsing import with_models

STYLE = replace(OWN["format"], kind=Literal["terminal", "json", "html"],
                help="Default: by the end of --output, else terminal.")  # fmt: skip
FILE = replace(OWN["output"], help="Write to this file (x.json, x.html or text). In a run's folder, trace.json becomes "
               "part of its report.")  # fmt: skip
Prompt = Annotated[str | None, typer.Option("--prompt", "-p", help="Text to go on from. Default: an example.")]
PromptFile = Annotated[
    Path | None, typer.Option(help="UTF-8 file with the prompt; a line end at its end is no part of it.")
]
ROUNDS = Option("rounds", bool, OUTPUT, "One line per round, with drafts that were never tested.",
                absent=False)  # fmt: skip
SEED = setting("seed", "Seed for every random draw.")


@options(..., *PAIR, "method", "lookahead", *SAMPLING, "chat", SEED, ROUNDS, STYLE, FILE, usual={"max_new_tokens": 64})
def trace(given: Given, prompt: Prompt = None, prompt_file: PromptFile = None) -> None:
    """Show one decode token by token.

    Accepted drafts are green, rejected ones struck through in red, corrections blue, bonus tokens magenta.

    Examples:

    specbench trace --prompt "def area(r):"

    specbench trace --method prompt-lookup --k 8 --output trace.html
    """
    settings = with_models(with_ks(settings_in(given)))
    from specbench.jobs import trace

    text = trace.prompt_of(prompt, prompt_file)
    trace.start(settings, text, given.get("output"), given.get("format"), given["rounds"])
