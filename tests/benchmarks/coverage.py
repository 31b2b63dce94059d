"""How often the intervals of `results.statistics` hold the truth, and how often `results.noise` warns of nothing.

Run `python -m tests.benchmarks.coverage` (about two minutes on one core, no models); `--quick` replicates a tenth.

Coverage of 95 % intervals over 2000 runs (standard error 0.005). Prompts differ: their log speedups by a standard
deviation of 0.22 or 0.08; "tails": one prompt in ten has three times the deviation of the others; "lengths": outputs
differ by a log-sd of 0.6; "slow": three prompts in a hundred were slowed by half (with few prompts most runs see none).
The α of a prompt differs by 0.1; forty rounds with K = 4 end at the first rejection. "binomial": what an interval
over tokens, which takes them for independent, would cover.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import ndtr, ndtri

from specbench.results import noise
from specbench.results.statistics import Interval, ratio_of_totals, speedup_interval

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Numbers, Numbers]]
PROMPTS = (10, 20, 40, 80, 164)
RUNS, BOOTSTRAPS, RESAMPLES = 2000, 500, 1000
K, ROUNDS = 4, 40
SPEEDUP = 1.88  # of a typical prompt; the truth is the ratio of the expected totals


def speeds(sd: float, tails: bool = False, lengths: float = 0.0, slow: float = 0.0) -> tuple[Draw, float]:
    """Seconds of baseline and method per prompt, and the true ratio of totals."""
    shares, widths = ((0.9, 0.1), (1.0, 3.0)) if tails else ((1.0, 0.0), (1.0, 1.0))
    unit = sd / np.sqrt(np.dot(shares, np.square(widths)))

    def draw(rng: np.random.Generator, prompts: int) -> tuple[Numbers, Numbers]:
        log_ratio = unit * rng.standard_normal(prompts) * np.where(rng.random(prompts) < shares[1], *widths[::-1])
        baseline = np.exp(lengths * rng.standard_normal(prompts) + 0.03 * rng.standard_normal(prompts))
        return baseline, baseline / SPEEDUP * np.exp(-log_ratio) * np.where(rng.random(prompts) < slow, 1.5, 1.0)

    mean = np.dot(shares, np.exp(np.square(unit * np.array(widths)) / 2)) * (1 + 0.5 * slow)
    return draw, float(SPEEDUP / mean)


def acceptances(mean: float, sd: float) -> tuple[Draw, float]:
    """Accepted and tested tokens per prompt, and the true ratio of totals."""

    def rates(rng: np.random.Generator, prompts: int) -> Numbers:
        return np.clip(mean + sd * rng.standard_normal(prompts), 0.02, 0.98)

    def draw(rng: np.random.Generator, prompts: int) -> tuple[Numbers, Numbers]:
        alpha, alive = rates(rng, prompts), np.full(prompts, ROUNDS)
        accepted, tested = np.zeros(prompts), np.zeros(prompts)
        for _ in range(K):
            tested = tested + alive
            alive = rng.binomial(alive, alpha)
            accepted = accepted + alive
        return accepted, tested

    many = rates(np.random.default_rng(0), 1_000_000)
    weights = (1 - many**K) / (1 - many)
    return draw, float(np.dot(many, weights) / weights.sum())


def shipped_speedup(parts: Numbers, wholes: Numbers) -> Interval:
    ones = [1] * len(parts)
    return speedup_interval(parts.tolist(), ones, wholes.tolist(), ones)


def shipped_share(parts: Numbers, wholes: Numbers) -> Interval:
    return ratio_of_totals(parts.tolist(), wholes.tolist(), at_most=1)


def binomial(parts: Numbers, wholes: Numbers) -> Interval:
    value = parts.sum() / wholes.sum()
    half = 1.96 * np.sqrt(value * (1 - value) / wholes.sum())
    return Interval(value, value - half, value + half)


def bootstraps(parts: Numbers, wholes: Numbers, rng: np.random.Generator) -> tuple[Interval, Interval]:
    """The percentile and the BCa interval of a paired bootstrap (Efron 1987)."""
    drawn = rng.multinomial(len(parts), np.full(len(parts), 1 / len(parts)), size=RESAMPLES)
    value, values = parts.sum() / wholes.sum(), (drawn @ parts) / (drawn @ wholes)
    left_out = (parts.sum() - parts) / (wholes.sum() - wholes)
    away = left_out.mean() - left_out
    skew = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    bias = ndtri(np.clip((values < value).mean(), 0.001, 0.999))
    z = bias + np.array([-1.96, 1.96])
    levels = ndtr(bias + z / (1 - skew * z))
    return Interval(value, *np.quantile(values, [0.025, 0.975])), Interval(value, *np.quantile(values, levels))


def coverage(runs: int, boots: int) -> Table:
    """One line per law of the prompts and kind of interval, one column per number of prompts."""
    laws: dict[str, tuple[tuple[Draw, float], Callable[[Numbers, Numbers], Interval]]] = {
        "speedup, log-sd 0.22": (speeds(0.22), shipped_speedup),
        "speedup, log-sd 0.08": (speeds(0.08), shipped_speedup),
        "speedup, log-sd 0.22, tails": (speeds(0.22, tails=True), shipped_speedup),
        "speedup, log-sd 0.22, tails, lengths": (speeds(0.22, tails=True, lengths=0.6), shipped_speedup),
        "speedup, log-sd 0.08, slow": (speeds(0.08, slow=0.03), shipped_speedup),
        "α 0.7": (acceptances(0.7, 0.1), shipped_share),
        "α 0.9": (acceptances(0.9, 0.1), shipped_share),
    }
    table = Table("coverage of 95 % intervals", "interval", *map(str, PROMPTS))
    for name, ((draw, truth), shipped) in laws.items():
        lines: dict[str, list[str]] = {}
        for prompts in PROMPTS:
            rng = np.random.default_rng(prompts)
            data = [draw(rng, prompts) for _ in range(runs)]
            kinds = {"shipped": [shipped(*d) for d in data]}
            pairs = [bootstraps(*d, rng) for d in data[:boots]]
            kinds |= {"percentile": [p for p, _ in pairs], "BCa": [b for _, b in pairs]}
            if shipped is shipped_share:
                kinds["binomial"] = [binomial(*d) for d in data]
            for kind, found in kinds.items():
                lines.setdefault(kind, []).append(f"{np.mean([i.low <= truth <= i.high for i in found]):.3f}")
        for kind, shares in lines.items():
            table.add_row(name, kind, *shares)
    return table


def false_alarms(runs: int) -> Table:
    """How often each warning is given on times that are drawn from one law; the last lines have the fault."""
    table = Table("warnings on times", "warning", *map(str, PROMPTS))
    cases: dict[str, Callable[[Any, int], Numbers]] = {
        "lognormal, sd 5 %": lambda rng, n: 0.05 * rng.standard_normal(n),
        "lognormal, sd 20 %": lambda rng, n: 0.2 * rng.standard_normal(n),
        "normal, sd 20 %": lambda rng, n: np.log(np.maximum(1 + 0.2 * rng.standard_normal(n), 0.1)),
    }
    cases["log t with 4 degrees, sd 5 %"] = lambda rng, n: 0.05 / np.sqrt(2) * rng.standard_t(4, n)
    cases["sd 2 %, drift of 6 %"] = lambda rng, n: 0.02 * rng.standard_normal(n) + np.linspace(0, 0.06, n)
    cases["sd 2 %, half of them 12 % slower"] = lambda rng, n: (
        0.02 * rng.standard_normal(n) + 0.12 * (rng.random(n) < 0.5)
    )
    for name, draw in cases.items():
        found = {n: np.mean([alarms(draw, n, np.random.default_rng((n, i))) for i in range(runs)], 0) for n in PROMPTS}
        for number, kind in enumerate(("drift", "bimodality", "outliers")):
            table.add_row(name, kind, *(f"{found[n][number]:.4f}" for n in PROMPTS))
    return table


def alarms(draw: Callable[[Any, int], Numbers], prompts: int, rng: np.random.Generator) -> list[bool]:
    """Which of the three warnings the times of one run of two arms give."""
    baseline, method = (np.exp(draw(rng, prompts)).tolist() for _ in range(2))
    share, p = noise.drift(baseline)
    marked = sum(a != "" or b != "" for a, b in zip(noise.outliers(baseline), noise.outliers(method), strict=True))
    found = {"outliers": marked, "drift": share, "drift_p": p, "bimodality": noise.bimodality(baseline)}
    said = " ".join(one.note for one in noise.warned({**found, "load_average": None}, prompts, None))
    return [words in said for words in ("the machine", "two groups", "are outliers")]


if __name__ == "__main__":
    less = 10 if "--quick" in sys.argv else 1
    console = Console(width=120)
    console.print(coverage(RUNS // less, BOOTSTRAPS // less))
    console.print(false_alarms(RUNS // less))
