"""`specbench selftest`: whether the installation is lossless, or how small a speedup this machine can show."""

from typing import Annotated

import typer

from specbench.cli import options as o


def selftest(
    noise: Annotated[
        bool,
        typer.Option("--noise", help="Measure the baseline against itself: the smallest effect this machine can show."),
    ] = False,
    target: o.Target = None,
    draft: o.Draft = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    dataset: o.Dataset = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    seed: o.Seed = None,
    repeat: o.Repeat = None,
    output_dir: o.OutputDir = None,
    format: o.Format = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> None:
    """Check quickly that greedy output is lossless here; with --noise, measure how much the machine itself varies.

    Without --noise: method chain at K 1, 2 and 4 on 4 shipped prompts in float32, exit 5 if an output differs.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from specbench.jobs import selftest

    selftest.selftest(given)
