"""`specbench selftest`: whether the installation is lossless, or how small a speedup this machine can show."""

from typing import Annotated

import typer

from specbench.cli.launch import settings_of
from specbench.cli.options import RESULTS, Given, options, setting

CHECKED = ("target", "draft", "revisions", setting("dtype", usual="float32; auto with --noise"), "device", "dataset",
           setting("limit", usual="4; 20 with --noise"), setting("max_new_tokens", usual="48; 128 with --noise"),
           "seed", "repeat")  # fmt: skip
Noise = Annotated[
    bool,
    typer.Option("--noise", help="Measure the baseline against itself: the smallest effect this machine can show."),
]


@options(..., *CHECKED, *RESULTS)
def selftest(given: Given, noise: Noise = False) -> None:
    """Check quickly that greedy output is lossless here; with --noise, measure how much the machine itself varies.

    Without --noise: method chain at K 1, 2 and 4 on 4 shipped prompts in float32, exit 5 if an output differs.
    """
    settings = settings_of(given)
    from specbench.jobs import selftest
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    selftest.start(settings, noise, output)
