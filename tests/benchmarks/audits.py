"""What `specbench audit` sees: the requests that each fault of a toy server takes, false alarms, and its power.

    python -m tests.benchmarks.audits [--save results/benchmarks/audit.md]

The toy server is `tests/support/faulty_server.py`. No figure here is a time.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from specbench.audit.certificate import Audit
from specbench.audit.course import Bounds, Course, Floors
from specbench.audit.findings import tested
from specbench.show.text import markdown_table
from tests.audit.test_audit import FOUND
from tests.support.direct import audited, course
from tests.support.server_faults import FAULTS

STEPS = (50, 100, 200, 424, 850, 1700, 3400)  # requests; 424 is a usual audit
NOISES, CLEAN = (0.0, 1e-3, 0.03), 50
ROUNDING = 1e-6


def of(requests: int, **server: object) -> Course:
    share = min(1.0, requests / 424)
    return course(share=share, bounds=Bounds(requests=requests if requests > 424 else None), **server)  # type: ignore[arg-type]


def found_in(made: Audit, name: str) -> str:
    """What an audit says of a fault; empty if it does not see it."""
    kind, what, _ = FOUND.get(name, ("fault", "another token", ""))
    some = [one for one in made.findings if (one.kind, one.what) == (kind, what)]
    return f"{kind}: {what} ({some[0].cause})" if some else ""


def fault(name: str) -> list[str]:
    """The number of requests after which a fault is found, and what is said of it."""
    for requests in STEPS:
        made = audited(of(requests, fault=name, noise=ROUNDING, refuses=False))
        if words := found_in(made, name):
            return [name, FAULTS[name].thread, str(made.requests), words]
    return [name, FAULTS[name].thread, f"> {STEPS[-1]}", "not found"]


def clean(number: int) -> tuple[float, str, int]:
    """An audit of a server without a fault: its rounding, its answer and its faults."""
    noise = NOISES[number % len(NOISES)]
    made = audited(of(424, noise=noise, seed=number, refuses=False))
    return noise, made.answer, len(made.faults)


def power() -> Iterator[list[str]]:
    """By requests: the share of faulty ones that may be missed, and the smallest shift of the best token's share."""
    for requests in STEPS:
        one = of(requests)
        cells = {cell.name: (cell, trials) for cell, trials in one.trials()}
        cell, trials = cells["temperature 1"]
        best = next(two for two in tested(one, cell, trials, "audited", Floors()) if two.name == "the best token")
        yield [str(requests), f"{3 / requests:.2%}", str(best.tokens), f"{best.smallest:.3f}"]


Cleans = Sequence[tuple[float, str, int]]


def report(faults: Sequence[Sequence[str]], cleans: Cleans, powers: Sequence[Sequence[str]]) -> str:
    by = []
    for noise in NOISES:
        some = [one for one in cleans if one[0] == noise]
        by.append(
            [f"{noise:g}", str(len(some)), str(sum(one[2] > 0 for one in some)), ", ".join({one[1] for one in some})]
        )
    return "\n".join([
        "# What an audit sees", "",
        "`python -m tests.benchmarks.audits`: a toy server in the shapes of vLLM, with faults built in one by one.", "",
        "## Faults", "",
        *markdown_table(("fault", "as in", "requests until it is found", "finding"), faults, "llrl"), "",
        "## Without a fault", "",
        f"{sum(one[2] > 0 for one in cleans)} false alarms in {len(cleans)} audits of 424 requests.", "",
        *markdown_table(("deviation of the logits by rounding", "audits", "false alarms", "answers"), by, "rrrl"), "",
        "## Power", "",
        "A fault in fewer requests than this share may be missed (95 %), and the test of the best token's share at",
        "temperature 1 finds a change of this size in 95 of 100 audits.", "",
        *markdown_table(("requests", "share of requests", "sampled tokens", "change of the share"), powers, "rrrr"), "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    wanted = parser.parse_args()
    with ProcessPoolExecutor(wanted.jobs) as pool:
        faults = list(pool.map(fault, FAULTS))
        cleans = list(pool.map(clean, range(CLEAN)))
    text = report(faults, cleans, list(power()))
    print(text)
    if wanted.save:
        wanted.save.write_text(text)


if __name__ == "__main__":
    main()
