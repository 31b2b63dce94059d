"""How often does `specbench compare` cry wolf, and how often does it see a slowdown of 5 %? A simulation, no models.

    python -m tests.benchmarks.gate [replications]        # 1000: about two minutes on one core

A run decodes every prompt with baseline and method, `repeat` times. The sd of the paired change of one prompt's log
speedup between two runs is 8 % at one repetition (4 % in each of the four times), and 3 % of all decodes are slower by
another 20 % on average (exponential). On top of that a run as a whole shifts the method's time by `run sd`, which no
interval over prompts can see. Four ratios are judged as in production, all drawn with noise of their own; a false alarm
is any regression among them where nothing changed, a detection any where the method takes 5 % more time.

Ways to use it: `one` = compare BASE NEW. `again` = compare BASE NEW NEW2. `interleaved` = compare BASE NEW NEW2
--base-rerun BASE2, the documented one (configs/ci/github.yml): base, head, base, head in one job. For contrast
`plain 2.5 %` and `plain 5 %`: fail where the point estimate of a single run is worse by so much; and `every run alone`:
interleaved, each pair beyond the margin and certain by itself.

Found with 1000 replications: interleaved with 48 prompts, false alarms stay at 0.6 % or less and 96.7 % or more of the
slowdowns are seen, once or three times repeated, while runs as a whole differ by up to 0.5 %. It does not hold where
they differ by 1 % (3 to 4 % false alarms: measure three or more pairs, or raise --margin), nor with 20 prompts (one
repetition: 69 % seen; three: 97.5 % seen with 1.1 % false alarms). Without a rerun of BASE its own shift stays in both
comparisons: `again` reaches 0.3 to 1.6 % and 91 to 100 % with 48 prompts. `every run alone` never cries wolf and sees
too little, which is why only all runs together must be certain. Nothing here measures time; the seeds are fixed.
"""

import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from specbench.judge.compare import CONFIDENCE, RATIO_MARGIN, RATIOS
from specbench.judge.significance import METRICS, TOTALLED, Criterion, Totals, Trial, decide, estimate

SLOWDOWN, PAIRED_SD, OUTLIERS, OUTLIER = 1.05, 0.08, 0.03, 0.20
SHAPES = ((20, 1), (20, 3), (48, 1), (48, 3))  # prompts, repetitions
RUN_SD = (0.0, 0.005, 0.01)
CRITERIA = [Criterion(name, worse, RATIO_MARGIN) for name, worse in RATIOS]
RULES = ("plain 2.5 %", "plain 5 %", "one", "again", "interleaved", "every run alone")
Pairs = Sequence[tuple[Totals, Totals]]


def run(rng: np.random.Generator, length: np.ndarray, gain: np.ndarray, repeat: int, slower: float) -> Totals:
    """Totals per prompt of one run; `slower` multiplies every time of the method."""
    n = len(length)

    def times(mean: np.ndarray) -> np.ndarray:
        noise = PAIRED_SD / 2 * rng.standard_normal((repeat, n))
        slow = 1 + (rng.random((repeat, n)) < OUTLIERS) * rng.exponential(OUTLIER, (repeat, n))
        return np.asarray((mean * np.exp(noise) * slow).sum(axis=0))

    rounds = length / 3 * repeat
    base, seconds = times(length * 0.01), times(length * 0.01 / gain) * slower
    found = dict.fromkeys(TOTALLED, rounds) | {"baseline_seconds": base, "seconds": seconds}
    found |= {"baseline_verify_seconds": times(length * 0.008), "verify_seconds": times(rounds * 0.012) * slower}
    found |= {"draft_seconds": times(rounds * 0.004) * slower, "drafted": 4 * rounds, "tested": 3 * rounds}
    return found | {"tokens": length * repeat, "baseline_tokens": length * repeat, "baseline_rounds": length * repeat}


def summed(runs: Iterable[Totals]) -> Totals:
    held = list(runs)
    return {name: np.sum([one[name] for one in held], axis=0) for name in TOTALLED}


def alarm(pairs: Pairs) -> bool:
    """What `compare` says of the ratios of one cell."""
    whole = summed(base for base, _ in pairs), summed(new for _, new in pairs)
    trials = []
    for one in CRITERIA:
        metric = METRICS[one.metric]
        runs = tuple(estimate(metric, base, new, paired=True) for base, new in pairs)
        trials.append(Trial(one, estimate(metric, *whole, paired=True), runs))
    return any(verdict.outcome == "REGRESSION" for verdict in decide(trials, 1 - CONFIDENCE))


def plain(pair: tuple[Totals, Totals], margin: float) -> bool:
    return math.expm1(estimate(METRICS["speedup"], *pair, paired=True).log) < -margin


def alarms(rng: np.random.Generator, prompts: int, repeat: int, run_sd: float, slower: float) -> list[bool]:
    """One world, judged by every rule, in the order of RULES."""
    length, gain = 100 * np.exp(0.3 * rng.standard_normal(prompts)), 1.5 * np.exp(0.22 * rng.standard_normal(prompts))

    def one(factor: float) -> Totals:
        return run(rng, length, gain, repeat, factor * math.exp(run_sd * rng.standard_normal()))

    (base, again), (new, newer) = [[one(factor), one(factor)] for factor in (1.0, slower)]
    first, second = (base, new), (again, newer)
    single = alarm([first])
    return [
        plain(first, 0.025),
        plain(first, 0.05),
        single,
        alarm([first, (base, newer)]),
        alarm([first, second]),
        single and alarm([second]),
    ]


def main(replications: int) -> None:
    table = Table(title=f"{replications} replications: false alarms % / 5 % slowdowns seen %", title_justify="left")
    for name in ("prompts × repeat", "run sd", *RULES):
        table.add_column(name, justify="right")
    for prompts, repeat in SHAPES:
        for run_sd in RUN_SD:
            rates = []
            for slower in (1.0, SLOWDOWN):
                rng = np.random.default_rng([prompts, repeat, round(1000 * run_sd)])
                worlds = [alarms(rng, prompts, repeat, run_sd, slower) for _ in range(replications)]
                rates.append(100 * np.mean(worlds, axis=0))
            cells = [f"{false:.1f} / {seen:.1f}" for false, seen in zip(*rates, strict=True)]
            table.add_row(f"{prompts} × {repeat}", f"{100 * run_sd:g} %", *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
