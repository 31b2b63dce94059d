"""From arguments to a measured run. Loads torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench import presets
from specbench.jobs import run as job
from specbench.jobs.resume import Typed, record_rest
from specbench.library.result import Hear, Hearing, Result
from specbench.measure import grid
from specbench.measure.parsing import USUAL, with_lists, with_models
from specbench.results.named_runs import found_run
from specbench.settings import engine_options


def run(
    target: str | list[str] | None = None,
    draft: str | list[str] | None = None,
    *,
    preset: str = "",
    executor: job.Executor = "local",
    output_dir: str | Path = "results",
    on_progress: Hear | None = None,
    **settings: Any,
) -> Result:
    """Measure baseline and speculative decoding of a pair, as `specbench run` does; with lists, as `specbench sweep`.

    target, draft: aliases, hub ids or folders; without both, the shipped pair. settings: those of the
    command, with underscores: k=4, method="chain", dataset="humaneval", limit=20, temperature=1.0 …; a list
    is an axis, and every combination a cell (k=[2, 4, 8]; k="1-8" also works). preset: the source of all
    other settings. executor: "process" measures every cell in its own process, "ray" on a device of a Ray
    cluster. on_progress: called with a `Progress` between the turns.

    Returns the run even if cells failed: see `Result.raise_for_status`. UsageError for a setting that is
    unknown or out of range, UnusableModelError if the only pair cannot be loaded. After an interrupt the
    results are in the folder that the note on the exception names, for `specbench.resume`.
    """
    named = {name: value for name, value in (("target", target), ("draft", draft)) if value is not None}
    theirs = presets.preset(preset).settings if preset else {}
    given = with_lists(with_models({**USUAL, **theirs, **named, **settings}))
    return concluded(job.record(grid.cells(given), Path(output_dir), Hearing(on_progress), preset, executor))


def resume(
    path: str | Path,
    *,
    limit: int | None = None,
    executor: job.Executor = "local",
    on_progress: Hear | None = None,
    trust_remote_code: bool = False,
    urls: Sequence[str] = (),
    engine_option: Mapping[str, str] | None = None,
    methods: Sequence[str] = (),
    words: Sequence[str] = (),
) -> Result:
    """Measure what a killed or interrupted run lacks; with a larger `limit`, add prompts.

    path: its folder or name. trust_remote_code: allow remote code of its checkpoints, if the run did; urls:
    its servers, if they may receive OPENAI_API_KEY; engine_option: its engine options that name files or
    code; methods: its method files that name Python files, which run here; words: those with which it starts
    servers. UsageError if that would mix machines or versions, or is impossible.
    """
    typed = Typed(trust_remote_code, tuple(urls), engine_options(engine_option), tuple(methods), tuple(words))
    return concluded(record_rest(found_run(Path(path)), Hearing(on_progress), executor, limit, typed))


def concluded(done: job.Outcome) -> Result:
    """The run; raises the interrupt that ended it."""
    if done.stop is not None:
        done.stop.add_note(f"specbench.resume({str(done.path)!r}) continues it")
        raise done.stop
    return Result(done.path, done.cells, done.about)
