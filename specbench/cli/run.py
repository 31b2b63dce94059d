"""`specbench run`: baseline and one method over some data sets, measured side by side."""

from specbench.cli.launch import EXECUTION, launch
from specbench.cli.options import DATA, MEASURING, METHOD, PAIR, RESULTS, SAMPLING, Given, options
from specbench.jobs.asked import USUAL

OPTIONS = (*PAIR, "preset", *METHOD, *EXECUTION, *DATA, *SAMPLING, *MEASURING)


@options(*OPTIONS, "executor", "yes", "resume", "config", "explain", *RESULTS)
def run(given: Given) -> None:
    """Measure baseline and speculative decoding of a pair over prompts.

    Without any option: the shipped pair on the shipped prompts, offline, on whatever device there is.

    Examples:

    specbench run

    specbench run --k 4 --dataset code --limit 50

    specbench run --target llama-7b --draft llama-68m --dataset humaneval

    specbench run --resume latest --limit 60
    """
    launch(given, axes=("dataset", "context", "backend", "batch", "arrivals"), **USUAL)
