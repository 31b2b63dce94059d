"""What does a round cost, beside its parts? From the columns of a run, one cell per K, all against one baseline.

    python -m tests.benchmarks.rounds [--pair demo@llama-300m:demo-draft] [--k 1,2,3,4,5,6,7,8] [--tier compile]

First table: a round, what its phases add up to (laps inside the very same round), and their shares; sampling and
acceptance is the phase "accept", the host's is "host". On CUDA also what the kernels of a round take, by torch's
profiler: the rest of the round is gaps between them. Second: cost of verification v(K), of a drafted token c, and the
speedup beside Leviathan's formula (predicted) and the same with the measured v, host and first draft (calibrated).

A tier costs up to a minute of compiling per K, so that all of 1 to 8 take about eight minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType

from specbench.measure.group import Job
from specbench.measure.pair import Prepared
from specbench.measure.plan import checked
from specbench.measure.runner import measure
from specbench.measure.sensors import sensors_for
from specbench.results.cells import Cell
from specbench.results.noise import faults, worst
from specbench.results.samples import Sample
from specbench.spec import RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, say

PHASES = ("draft", "verify", "accept", "host")


class Narrator:
    """Says what is being done, and keeps nothing."""

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        self.left = prompts

    def loading(self, what: str, done: int, total: int) -> None:
        return

    def resolved(self, cells: Sequence[Cell]) -> None:
        return

    def preparing(self, spec: RunSpec | None) -> None:
        if spec is not None:
            say(f"preparing {spec.method} K = {spec.k}")

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        self.left -= max(map(len, samples.values()), default=0)
        say(f"measuring: {self.left} prompts left")

    def end(self, cell: Cell) -> None:
        say(f"K {cell.spec.k}: {cell.status} {cell.error}")


def round_row(cell: dict[str, Any], kernels: float | None) -> dict[str, Any]:
    """A line of the first table; `kernels` are milliseconds of a round."""
    phases = {name: cell[f"round_{name}_ms"] for name in PHASES}
    whole = cell["round_ms"]
    found = {"K": cell["k"], "round ms": whole, "Σ phases ms": sum(phases.values())}
    found |= {f"{name} ms": value for name, value in phases.items()}
    found |= {"accept share": phases["accept"] / whole, "host share": phases["host"] / whole}
    found |= {"round in steps": whole / cell["baseline_step_ms"]}
    return found if kernels is None else found | {"kernels ms": kernels, "gaps share": 1 - kernels / whole}


def cost_row(cell: dict[str, Any]) -> dict[str, Any]:
    """A line of the second table."""
    names = ("c", "v", "overhead", "alpha", "tokens_per_round", "baseline_tokens_per_second", "tokens_per_second")
    measured, calibrated = cell["speedup"], cell["speedup_calibrated"]
    return {
        "K": cell["k"],
        **{name.replace("_", " "): cell[name] for name in names},
        "speedup": measured,
        "95 %": f"{cell['speedup_low']:.3g} – {cell['speedup_high']:.3g}",
        "predicted": cell["speedup_predicted"],
        "measured ÷ predicted": measured / cell["speedup_predicted"],
        "calibrated": calibrated,
        "measured ÷ calibrated": measured / calibrated,
        "same text": f"{cell['prompts_identical']}/{cell['prompts_compared']}" if cell["prompts_compared"] else "",
        "ready s": cell["ready_seconds"],
    }


def kernel_ms(prepared: Prepared, job: Job) -> float | None:
    """Milliseconds that kernels take in a round, of one decode under torch's profiler; None where there are none."""
    if prepared.backend.device.type != "cuda":
        return None
    prompt = job.prompts.prompts[0]
    decode = prepared.backend.prepare(job.spec, len(prompt.ids))
    decode([prompt.ids], [0])
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        (trace,) = decode([prompt.ids], [0])
    # the prefill is in it, too: it is left out by its share of the seconds
    share = trace.seconds / (trace.seconds + trace.prefill_seconds)
    # rows of the host carry the time of their kernels, too, and marks span others
    rows = [one for one in profile.key_averages() if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    kernels = sum(one.self_device_time_total for one in rows) / 1000
    return share * kernels / len(trace.rounds)


def specs_of(bench: Bench) -> list[RunSpec]:
    args = bench.args
    acceptance = (args.acceptance,) if args.acceptance else None
    spec = harness.spec_of(bench, tier=args.tier, acceptance=acceptance)
    return [spec.with_(k=k) for k in harness.numbers(args.k)]


def run(bench: Bench) -> tuple[list[Sheet], list[dict[str, Any]]]:
    """Measure the cells, and lay their columns out."""
    prepared = checked(specs_of(bench))
    say(f"loading {bench.args.pair}")
    jobs = prepared.load({})
    cells, stop = measure(jobs, prepared.backend, [Narrator()], sensors=sensors_for(prepared.backend.device))
    if stop is not None:
        raise stop
    done = [(cell, job) for cell, job in zip(cells, jobs, strict=True) if cell.status == "ok"]
    failed = [f"K {cell.spec.k}: {cell.status}: {cell.error}" for cell in cells if cell.status != "ok"]
    rows = [(cell.row(), kernel_ms(prepared, job)) for cell, job in done]
    args = bench.args
    about = f"{args.pair}, {args.dtype}, tier {args.tier}, {args.prompts} prompts, {args.new} new tokens"
    about += f", synthetic acceptance {args.acceptance:g}" if args.acceptance else ""
    step = [f"baseline step: {rows[0][0]['baseline_step_ms']:.4g} ms"] if rows else []
    pace = [fault.note for fault in worst(fault for row, _ in rows for fault in faults(row))]
    sheets = [
        Sheet(f"A round and its parts: {about}", [round_row(*one) for one in rows], [*step, *failed, *pace]),
        Sheet("Costs and speedups", [cost_row(cell) for cell, _ in rows]),
    ]
    return sheets, [line for cell, _ in done for line in ({"k": cell.spec.k, **row} for row in cell.sample_rows())]


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo", prompts=8, new=96)
    options.add_argument("--k", default="1,2,4,8", help="lookaheads (1,2,4,8)")
    options.add_argument("--tier", help="(compile; on a GPU graph)")
    options.add_argument("--acceptance", type=float, help="synthetic: this chance of acceptance at every position")
    bench = harness.begin("rounds", "Cost of a round against its parts", options.parse_args())
    bench.publish(*run(bench))


if __name__ == "__main__":
    main()
