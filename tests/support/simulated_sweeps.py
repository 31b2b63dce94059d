"""A sweep over K that looks like a measured one: simulated rounds with plausible costs, fixed by a seed. No model."""

import json
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specbench.metrics import RoundCounts, Trace
from specbench.results.cells import Cell, Losslessness
from specbench.results.folder import RunFolder
from specbench.results.samples import Sample
from specbench.spec import SCHEMA_VERSION, RunSpec

STEP, PASS, DRAFT, FIRST = 6.2e-3, 5.6e-3, 0.9e-3, 1.25e-3  # seconds: baseline step, its pass, later and first draft
CATEGORIES = {"code": ("parsing", "maths", "text"), "articles": ("news",)}
ENVIRONMENT = {
    "specbench": "0.1.0", "python": "3.12.4", "torch": "2.13.0", "transformers": "5.23.0", "platform": "Linux",
    "cpu": "Example CPU", "threads": 2, "cores": 2, "device": "cpu",
    "device_name": "Example CPU", "fingerprint": "f" * 12,
}  # fmt: skip


def decoded(chance: random.Random, alpha: float, k: int, new: int, noise: float) -> Trace:
    """One decode of `new` tokens by rounds of K; acceptance rises with the position, as it does on real text."""
    rounds, left = [], new
    while left:
        drafted = min(k, left - 1)
        overlap = [min(alpha + 0.03 * i + chance.gauss(0, 0.05), 1.0) for i in range(drafted)]
        accepted = next((i for i, a in enumerate(overlap) if chance.random() > a), drafted)
        tested = min(accepted + 1, drafted)
        rounds.append(RoundCounts(drafted, tested, accepted, accepted + 1, tuple(overlap[:tested])))
        left -= accepted + 1
    n, drafts = len(rounds), sum(r.drafted for r in rounds)
    first = FIRST * sum(r.drafted > 0 for r in rounds) * noise
    draft = first + DRAFT * (drafts - sum(r.drafted > 0 for r in rounds)) * noise
    verify = PASS * (1 + 0.09 * k) * n * noise
    spans = {"draft": draft, "draft/first": first, "verify": verify, "accept": 5e-4 * n * noise}
    seconds = draft + verify + (5e-4 + (3e-4 if k else 1e-4)) * n * noise
    return Trace(tuple(range(new)), tuple(rounds), seconds, 0.02 * noise, spans)


def samples(dataset: str, prompts: int, ks: Sequence[int], seed: int = 0) -> dict[int, list[Sample]]:
    """The samples of every K; all K of a prompt share its turn, its baseline and its difficulty."""
    chance, names = random.Random(f"{seed}:{dataset}"), CATEGORIES.get(dataset, ("all",))
    found: dict[int, list[Sample]] = {k: [] for k in ks}
    for turn in range(prompts):
        kind = turn % len(names)
        alpha = min(max(chance.gauss(0.72 - 0.08 * kind, 0.07), 0.2), 0.95)
        noise = chance.gauss(1, 0.03)
        baseline = decoded(chance, 0, 0, 128, noise)
        for k in ks:
            slow = 1.6 if (turn, k) == (7, 3) else 1.0
            method = decoded(chance, alpha, k, 128, noise * chance.gauss(1, 0.02) * slow)
            load = 1.0 + 0.02 * turn
            found[k].append(
                Sample(f"{dataset}/{turn}", names[kind], 0, 90 + turn, turn, (0, k), load, baseline, method)
            )
    return found


def sweep(dataset: str, prompts: int = 20, ks: Sequence[int] = range(1, 9), **changes: Any) -> list[Cell]:
    """One cell per K on one data set."""
    machine = {name: ENVIRONMENT[name] for name in ("device_name", "threads", "torch", "transformers", "specbench")}
    resolved = {"dtype_resolved": "float32", "draft_dtype_resolved": "float32", "rejected": "", **machine}
    same = Losslessness("identical", prompts, prompts)
    spec = {"draft": "demo-draft", "dataset": dataset, "limit": prompts, **changes}
    return [
        Cell(RunSpec(k=k, **spec), resolved, found, lossless=same) for k, found in samples(dataset, prompts, ks).items()
    ]


def description() -> dict[str, Any]:
    """run.json of such a sweep."""
    return {
        "schema_version": SCHEMA_VERSION,
        "started": "20260102T030405Z",
        "command": "specbench sweep-k --k 1-8 --limit 20",
        "environment": dict(ENVIRONMENT),
    }


def write_run(parent: Path, cells: Sequence[Cell], name: str = "run", **changes: Any) -> Path:
    """The cells as a run's folder, written by the production code, its tables once at the end."""
    specs = [cell.spec.model_dump(mode="json") for cell in cells]
    folder = RunFolder.create(parent, name, {**description(), "specs": specs, **changes})
    with closing(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "render", lambda: None)
        for cell in cells:
            folder.begin([cell], len(cell.samples))
            for one in cell.samples:
                folder.turn({cell.spec: [one]})
            folder.end(cell)
    return folder.path


def write_calibration(parent: Path) -> Path:
    """A folder of `specbench calibrate`: two models, two contexts, passes of 1 to 9 tokens."""
    path = parent / "calibrate"
    path.mkdir()
    (path / "run.json").write_text(json.dumps({**description(), "command": "specbench calibrate"}))
    lines = ["model,context,width,milliseconds,low,high,v"]
    for model, base in (("target", 5.6), ("draft", 0.8)):
        for context in (128, 512):
            for width in range(1, 10):
                ms = base * (1 + context / 4000) * (1 + 0.06 * (width - 1))
                lines.append(f"{model},{context},{width},{ms},{ms * 0.98},{ms * 1.03},{1 + 0.06 * (width - 1)}")
    (path / "calibration.csv").write_text("\n".join(lines) + "\n")
    return path
