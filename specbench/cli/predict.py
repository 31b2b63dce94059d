"""`specbench predict`: the formulas as tables, for given alpha and c or beside what a run measured.

Must not load torch, transformers, datasets or pandas: the command answers at once.
"""

from collections.abc import Mapping
from pathlib import Path

from specbench.cli.options import PLAIN, Given, options
from specbench.cli.predict_options import (
    DEFAULT_KS,
    Alphas,
    Arrivals,
    CHat,
    CRounds,
    Cs,
    Devices,
    Fleet,
    Ks,
    OutputTokens,
    Price,
    Requests,
    Run,
    Seed,
    Slots,
    Users,
)
from specbench.errors import UsageError
from specbench.jobs import fleet as of_load
from specbench.jobs import predict as job
from specbench.jobs.fleet import Servers
from specbench.jobs.parsing import parse_k_list
from specbench.results.named_runs import found_run


@options(..., PLAIN)
def predict(
    given: Given,
    alpha: Alphas = None,
    c: Cs = None,
    c_round: CRounds = None,
    c_hat: CHat = None,
    k: Ks = None,
    from_run: Run = None,
    fleet: Fleet = False,
    arrivals: Arrivals = None,
    users: Users = None,
    devices: Devices = None,
    slots: Slots = None,
    output_tokens: OutputTokens = None,
    requests: Requests = None,
    price: Price = None,
    seed: Seed = None,
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    The best K is that of all K, whether it was asked for or not; K = 0 is decoding without a draft.

    Examples:

    specbench predict --alpha 0.7 --c 0.05

    specbench predict --alpha 0.6 --alpha 0.8 --c 0.1 --k 1-16

    specbench predict --from-run latest
    """
    style = given["format"]
    if fleet:
        others = {"alpha": alpha, "c": c, "c-round": c_round, "c-hat": c_hat, "k": k}
        servers = Servers(devices or 1, slots, output_tokens, requests or 1000, price, seed or 0)
        of_load.start(run_of_fleet(from_run, others), arrivals or [], users or [], servers, style)
        return
    check_alone(arrivals, users, devices, slots, output_tokens, requests, price, seed)
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_round, c_hat, k)):
            raise UsageError(
                "--from-run takes alpha, c and K from the run: leave out --alpha, --c, --c-round, --c-hat and --k"
            )
        job.from_run(found_run(from_run), style)
        return
    costs = [*((one, False) for one in c or []), *((one, True) for one in c_round or [])]
    if not alpha or not costs:
        raise UsageError(
            "nothing to predict from: give --alpha and --c (such as 0.7 and 0.1) or --c-round, or --from-run RUN"
        )
    job.from_rates(alpha, costs, c_hat, parse_k_list(DEFAULT_KS if k is None else k), style)


def run_of_fleet(run: Path | None, others: Mapping[str, object]) -> Path:
    """The run of --fleet; UsageError without one, or with options that say nothing beside it."""
    if run is None:
        raise UsageError("--fleet asks for measured costs: add --from-run RUN, a run with --batch 1,2,4,8")
    if given := [f"--{name}" for name, value in others.items() if value is not None]:
        raise UsageError(f"--fleet takes all costs from the run: leave out {', '.join(given)}")
    return found_run(run)


def check_alone(*of_fleet: object) -> None:
    """UsageError for options that say nothing without --fleet."""
    if any(option is not None for option in of_fleet):
        raise UsageError(
            "--arrivals, --users, --devices, --slots, --output-tokens, --requests, --price and --seed are of servers "
            "under load: add --fleet, or leave them out"
        )
