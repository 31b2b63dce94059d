"""How near a speedup with several requests in flight comes to that of a server whose slots are never idle.

Run `python -m tests.benchmarks.closed_loop` (a simulation: under a minute on one core, no models). A pass of the server
takes 20 ms and 3 ms per running request; a new request stops all for 50 to 100 ms. Answers have about 55 tokens, at
most 64, and a draft that accepts a log-normal number of tokens per pass, at 1.09 times the cost of a pass. Every turn
of an arm is slower or faster by a log-sd of its own. The truth is the ratio of two runs of 6,000 requests.

"turns": elapsed seconds of turns of at least one request per slot, over turns. "slots": what specbench does: the
latency of every request ÷ slots, in turns of at least two requests per slot, over turns if there are five, else over
prompts.
"""

import random
from collections.abc import Sequence
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from specbench.measure.group import chunks
from specbench.results.numbers import PER_SLOT
from specbench.results.statistics import FEWEST, Interval, speedup_interval

RUNS, REQUESTS = 400, 6000
PASS, ROW, DEARER = 0.020, 0.003, 1.09
Request = tuple[float, int, float]  # seconds of the prompt, tokens, tokens per pass


def request(chance: random.Random) -> Request:
    tokens = min(64, max(8, int(chance.lognormvariate(4.0, 0.4))))
    return 0.05 + 0.05 * chance.random(), tokens, 1 + chance.lognormvariate(-1.05, 0.8)


def turn(requests: Sequence[Request], slots: int, drafts: bool, pace: float) -> tuple[list[float], float]:
    """The latency of every request, and the elapsed seconds."""
    waiting, running = list(enumerate(requests))[::-1], list[list[float]]()
    now, found = 0.0, [0.0] * len(requests)
    while waiting or running:
        while waiting and len(running) < slots:
            number, (prompt, tokens, _) = waiting.pop()
            running.append([number, now, tokens])
            now += prompt * pace
        now += (PASS + ROW * len(running)) * pace * (DEARER if drafts else 1)
        for one in running:
            one[2] -= requests[int(one[0])][2] if drafts else 1
        for one in [one for one in running if one[2] <= 0]:
            found[int(one[0])] = now - one[1]
            running.remove(one)
    return found, now


def measured(chance: random.Random, prompts: int, slots: int, sd: float, whole_turns: bool) -> Interval:
    """The speedup of one simulated run."""
    found: list[tuple[float, float, float, float]] = []
    requests = [request(chance) for _ in range(prompts)]
    parts = chunks(requests, slots, None if whole_turns else PER_SLOT * slots)
    for part in parts:
        arms = [turn(part, slots, drafts, chance.lognormvariate(0, sd)) for drafts in (False, True)]
        (bases, base), (methods, method) = arms
        tokens, used = [tokens for _, tokens, _ in part], min(slots, len(part))
        rows = [(b / used, n, m / used, n) for b, m, n in zip(bases, methods, tokens, strict=True)]
        if whole_turns:
            rows = [(base, sum(tokens), method, sum(tokens))]
        elif len(parts) >= FEWEST:
            rows = [(sum(bases) / used, sum(tokens), sum(methods) / used, sum(tokens))]
        found += rows
    return speedup_interval(*zip(*found, strict=True))


def main() -> None:
    title = f"simulated, {RUNS} runs per line"
    table = Table("in flight", "prompts", "sd of a turn", "truth", "by", "mean", "covered", "half width", title=title)
    for slots in (4, 16):
        many = [request(chance) for chance in [random.Random(5)] for _ in range(REQUESTS)]
        truth = turn(many, slots, False, 1)[1] / turn(many, slots, True, 1)[1]
        for sd in (0.01, 0.03):
            for prompts in (20, 40, 80, 160):
                for whole in (True, False):
                    chance = random.Random(prompts)
                    found = [measured(chance, prompts, slots, sd, whole) for _ in range(RUNS)]
                    known = [one for one in found if one.low == one.low]
                    half = f"{median((one.high / one.low) ** 0.5 - 1 for one in known):.3f}" if known else "–"
                    covered = f"{fmean(one.low <= truth <= one.high for one in known):.3f}" if known else "–"
                    means = f"{fmean(one.value for one in found):.3f}"
                    kind = "turns" if whole else "slots"
                    table.add_row(str(slots), str(prompts), str(sd), f"{truth:.3f}", kind, means, covered, half)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
