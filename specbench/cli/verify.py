"""`specbench verify`: whether the methods are lossless, here, and on a pair of one's own."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from specbench.cli.launch import settings_of
from specbench.cli.options import OWN, RESULTS, Given, Option, options, setting
from specbench.errors import UsageError

METHODS = Option("method", list[str], "Method", "A method of configs/methods, or a YAML file. Repeatable. Default: all "
                 "that the pair can run.", ("--method", "-m"))  # fmt: skip
TOKENS = Option("tokens", int, "Sampling", "Tokens per method that are sampled and tested, at least. Default: "
                "2000.", low=100, absent=2000)  # fmt: skip
SETTINGS = ("model", "revisions", "precision", "device", METHODS, setting("k"), setting("dataset", usual="code"),
            "excerpt", "chat", setting("limit", usual=8), setting("max_new_tokens", usual=48), "ignore_eos",
            setting("temperature", "Of the sampled text; greedy text is checked, too.", 1), TOKENS,
            setting("batch", "Rows decoded together.", "1; 8 for sampled text"), setting("tier"), setting("backend"),
            setting("seed", "Seed for the prompt sample and for every random draw."))  # fmt: skip
FOLDER = replace(OWN["output_dir"], help="Where the certificate's folder is made. Default: results.")
Pair = Annotated[list[str] | None, typer.Argument(metavar="[TARGET [DRAFT]]", help="Alias, hub id or folder.")]


@options(..., *SETTINGS, FOLDER, *RESULTS)
def verify(given: Given, pair: Pair = None) -> None:
    """Prove the methods exact, and check a pair: greedy output, controls, and z-tests of sampled text.

    Without a TARGET only the proofs, on this installation. Exit code 5 where anything is not lossless.

    Examples:

    specbench verify

    specbench verify demo --method chain --method prompt-lookup
    """
    settings: dict[str, Any] = {**settings_of(given)}
    names, tokens = settings.pop("method", None), given["tokens"]
    if len(pair or ()) > 2:
        raise UsageError(f"{len(pair or ())} models were given: specbench verify takes a target and a draft")
    named = dict(zip(("target", "draft"), pair or (), strict=False))
    from specbench.jobs import verify
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    if not named and settings:
        raise UsageError(f"--{min(settings).replace('_', '-')} is about a pair: name it, as in specbench verify demo")
    verify.start({**settings, **named}, names, tokens, output)
