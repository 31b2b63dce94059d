"""Runs made by hand for `compare`: cells with numbers and samples (fixture `made_runs`)."""

from pathlib import Path
from typing import Any

import numpy as np

from specbench.spec import SCHEMA_VERSION
from tests.support.made_runs import made_run

CELL: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION, "status": "ok", "error": "", "target": "big", "draft": "small",
    "target_revision": None, "draft_revision": None, "method": "chain", "k": 4, "schedule": "constant",
    "confidence": 0.4, "dataset": "code", "column": None, "template": None, "limit": None, "max_new_tokens": 128,
    "temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "eta": None, "ignore_eos": False,
    "dtype": "auto", "draft_dtype": None, "device": "auto", "tier": "eager", "seed": 0, "warmup": 2, "repeat": 1,
    "prompts_sha256": "5" * 64, "target_source": "o/big", "target_commit": "1e10", "dtype_resolved": "float32",
    "draft_source": "o/small", "draft_commit": "007", "draft_dtype_resolved": "float32", "device_name": "abacus",
    "threads": 2, "torch": "2.13.0", "transformers": "5.23.0", "specbench": "0.1", "fingerprint": "abcdefabcdef",
}  # fmt: skip


def decoded(prompts: int = 24, slower: float = 1.0, noise: float = 0.005, seed: int = 0) -> list[dict[str, Any]]:
    """The samples of a cell: times with `noise` (log sd per phase), the method's multiplied by `slower`."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(prompts):
        rounds, tokens = 40 + i % 7, 120
        counts = {"rounds": rounds, "drafted": 4 * rounds, "tested": 3 * rounds, "accepted": tokens - rounds}
        base, draft, verify, rest = np.exp(noise * rng.normal(size=4)) * (tokens * 0.010, 0.16, rounds * 0.012, 0.05)
        rows.append(
            {"prompt": f"p{i}", "category": "all", "repeat": 0, "baseline_tokens": tokens, "tokens": tokens}
            | {"baseline_seconds": base, "seconds": slower * (draft + verify + rest), "baseline_rounds": tokens}
            | {"baseline_verify_seconds": base * 0.8, "draft_seconds": draft * slower}
            | {"verify_seconds": verify * slower, "overlap": 0.6 * 3 * rounds, **counts}
            | {"output_sha256": f"1e{i}", "baseline_output_sha256": f"1e{i}"}
        )
    return rows


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of results.csv that follow from samples."""
    sums = {name: float(sum(row[name] for row in rows)) for name in rows[0] if not isinstance(rows[0][name], str)}
    step = sums["baseline_seconds"] / sums["baseline_rounds"]
    speedup, alpha = sums["baseline_seconds"] / sums["seconds"], sums["overlap"] / sums["tested"]
    return {
        "prompts": len(rows),
        "alpha": alpha, "alpha_low": alpha * 0.98, "alpha_high": alpha * 1.02,
        "c": sums["draft_seconds"] / sums["drafted"] / step,
        "v": sums["verify_seconds"] / sums["rounds"] / (sums["baseline_verify_seconds"] / sums["baseline_rounds"]),
        "speedup": speedup, "speedup_low": speedup * 0.99, "speedup_high": speedup * 1.01,
        "baseline_tokens_per_second": sums["baseline_tokens"] / sums["baseline_seconds"],
        "tokens_per_second": sums["tokens"] / sums["seconds"], "round_ms": 1000 * sums["seconds"] / sums["rounds"],
        "speedup_predicted": 1.5, "rounds": int(sums["rounds"]),
    }  # fmt: skip


Cell = tuple[dict[str, Any], list[dict[str, Any]]]


def cell(samples: list[dict[str, Any]] | None = None, **changes: Any) -> Cell:
    """A cell with its samples; one that failed has neither samples nor numbers."""
    rows = (decoded() if samples is None else samples) if changes.get("status", "ok") in {"ok", "partial"} else []
    numbers = measured(rows) if rows else dict.fromkeys(measured(decoded()))
    return {**CELL, **numbers, **changes}, rows


def folder(path: Path, *cells: Cell) -> Path:
    """A run with these cells."""
    rows = [{**row, "cell": f"{i:012x}"} for i, (row, _) in enumerate(cells)]
    return made_run(path, rows, [[{"cluster": one["prompt"], **one} for one in samples] for _, samples in cells])
