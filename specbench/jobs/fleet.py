"""The body of `specbench predict --fleet`: from a run at several batches to servers under load. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import UsageError
from specbench.jobs.given_runs import read_given, rows_with, tell
from specbench.judge.fleet import NEEDED, Arm, arms, lengths
from specbench.show.fleet import Line, print_fleet
from specbench.show.text import Format
from specbench.theory.fleet import Load, simulate


@dataclass(frozen=True)
class Servers:
    """The fleet that is asked about. slots: rows of a device, None for all that were measured; output_tokens: the mean
    of an answer, None for those that were measured; price: of a device and hour."""

    devices: int
    slots: int | None
    output_tokens: float | None
    requests: int
    price: float | None
    seed: int


def start(run: Path, arrivals: Sequence[float], users: Sequence[int], servers: Servers, style: Format) -> None:
    """Play every load through every method of a run and its baseline. UsageError without a load, or a folder."""
    if not arrivals and not users:
        raise UsageError("no load: give --arrivals (requests a second, such as 0.5) or --users (such as 16)")
    if not all(rate > 0 for rate in arrivals):
        raise UsageError("--arrivals must be above 0 requests a second")
    (read,) = read_given([run])
    found = arms([row for _, row in rows_with(read, NEEDED)], servers.slots)
    samples = [row for rows in read.samples for row in rows]
    tell([read])
    print_fleet([line for arm in found for line in lines(arm, samples, arrivals, users, servers)], servers.price, style)


def lines(
    arm: Arm, samples: Sequence[dict[str, str]], arrivals: Sequence[float], users: Sequence[int], servers: Servers
) -> list[Line]:
    """What an arm does with every load."""
    long = lengths(samples, arm, servers.output_tokens)
    capacity = servers.devices * arm.engine.capacity(sum(long) / len(long))
    loads = [Load(servers.requests, long, rate=rate, seed=servers.seed) for rate in arrivals]
    loads += [Load(servers.requests, long, users=count, seed=servers.seed) for count in users]
    return [Line(arm, load, servers.devices, capacity, simulate(arm.engine, load, servers.devices)) for load in loads]
