"""`specbench noise`: how small a speedup this machine can show."""

from specbench.cli.launch import settings_of
from specbench.cli.options import RESULTS, Given, options, setting

MEASURED = ("target", "draft", "revisions", "precision", "device", "dataset", setting("limit", usual=20),
            "max_new_tokens", "seed", "repeat")  # fmt: skip


@options(*MEASURED, *RESULTS)
def noise(given: Given) -> None:
    """Measure the baseline against itself: how much the machine varies, and the smallest speedup that it can show.

    Examples:

    specbench noise

    specbench noise --limit 10 --repeat 3
    """
    settings = settings_of(given)
    from specbench.jobs import noise
    from specbench.jobs.output import output_of

    output = output_of(settings, given)
    noise.start(settings, output)
