"""What does a round cost, beside its parts? From the columns of a run, one cell per K, all against one baseline.

    python -m tests.benchmarks.rounds [KEY=VALUE …] [--run RUN] [--save FILE]

The settings are those of grids/rounds.yaml, where given ones replace them: target=demo@llama-300m k=[1,2,3] tier=eager.

First table: a round, what its phases add up to (laps inside the very same round), and their shares; sampling and
acceptance is the phase "accept", the host's is "host". Second: cost of verification v(K), of a drafted token c, and the
speedup next to Leviathan's formula (predicted) and the same with the measured v, host and first draft (calibrated).
On CUDA a third: what the kernels of a round take, by torch's profiler; the rest of the round is gaps between them.

A tier costs up to a minute of compiling per K, so that all of 1 to 8 take about eight minutes on two cores.
"""

from typing import Any

import torch
from torch.autograd import DeviceType

from specbench import Result
from specbench.backends.native import Native, open_pair
from specbench.results.noise import faults, worst
from specbench.spec import RunSpec
from tests.benchmarks.harness import Row, Sheet, gridded, prompts_for

PHASES = ("draft", "verify", "accept", "host")
COSTS = ("c", "v", "overhead", "alpha", "tokens_per_round", "baseline_tokens_per_second", "tokens_per_second")


def tables(run: Result) -> list[Sheet]:
    rows = [row for row in run.rows() if row["status"] == "ok"]
    failed = [f"K {row['k']}: {row['status']}: {row['error']}" for row in run.rows() if row["status"] != "ok"]
    step = [f"baseline step: {row['baseline_step_ms']:.4g} ms" for row in rows[:1]]
    notes = [*step, *failed, *(fault.note for fault in worst(fault for row in rows for fault in faults(row)))]
    about = [
        f"{row['target']}, {row['dtype_resolved']}, tier {row['tier_resolved']}, {row['prompts']} prompts"
        for row in rows
    ]
    sheets = [
        Sheet(f"A round and its parts: {', '.join(about[:1])}", [round_row(row) for row in rows], notes),
        Sheet("Costs and speedups", [cost_row(row) for row in rows]),
    ]
    specs = [cell.spec for cell in run.cells if cell.status == "ok" and cell.spec.device != "cpu"]
    if specs and torch.cuda.is_available():
        (native := open_pair(specs)).load()
        found = [kernel_row(native, *both) for both in zip(specs, rows, strict=True)]
        sheets.append(Sheet("Kernels of a round", found))
    return sheets


def round_row(row: Row) -> Row:
    phases = {name: row[f"round_{name}_ms"] for name in PHASES}
    whole = row["round_ms"]
    return {
        "K": row["k"], "round ms": whole, "Σ phases ms": sum(phases.values()),
        **{f"{name} ms": value for name, value in phases.items()},
        "accept share": phases["accept"] / whole, "host share": phases["host"] / whole,
        "round in steps": whole / row["baseline_step_ms"],
    }  # fmt: skip


def cost_row(row: Row) -> Row:
    compared = row["prompts_compared"]
    return {
        "K": row["k"], **{name.replace("_", " "): row[name] for name in COSTS}, "speedup": row["speedup"],
        "95 %": f"{row['speedup_low']:.3g} – {row['speedup_high']:.3g}", "predicted": row["speedup_predicted"],
        "measured ÷ predicted": row["speedup"] / row["speedup_predicted"], "calibrated": row["speedup_calibrated"],
        "measured ÷ calibrated": row["speedup"] / row["speedup_calibrated"],
        "same text": f"{row['prompts_identical']}/{compared}" if compared else "", "ready s": row["ready_seconds"],
    }  # fmt: skip


def kernel_row(native: Native, spec: RunSpec, row: Row) -> Row:
    """One decode under torch's profiler, next to the round of the run, which had none."""
    prompt = prompts_for(native, spec)[0]
    decode: Any = native.prepare(spec, len(prompt.ids))
    decode([prompt.ids], [0])
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        (trace,) = decode([prompt.ids], [0])
    # rows of the host carry the time of their kernels, too, and marks span others
    rows = [one for one in profile.key_averages() if one.device_type == DeviceType.CUDA and not one.is_user_annotation]
    # the prefill is in it, too: it is left out by its share of the seconds
    share = trace.seconds / (trace.seconds + trace.prefill_seconds)
    kernels = share * sum(one.self_device_time_total for one in rows) / 1000 / len(trace.rounds)
    whole = row["round_ms"]
    return {"K": spec.k, "kernels ms": kernels, "round ms": whole, "gaps share": 1 - kernels / whole}


if __name__ == "__main__":
    gridded("rounds", "Cost of a round against its parts", __doc__, tables)
