"""The deterministic tier of `compare`: numbers without noise must be equal, prompt by prompt.

Knows when two cells must agree to the last token, and where they first do not; must not know times.
"""

from pathlib import PurePosixPath

import pandas as pd

from specbench.judge.compare_input import COUNTS, HASHES, Record
from specbench.judge.holm_test import Outcome
from specbench.wording import clean

SAME = ("seed", "prompts_sha256", "dtype_resolved", "draft_dtype_resolved", "torch", "transformers")
OF_THE_BASELINE = ("baseline_tokens", "baseline_output_sha256")
KEY = ["prompt", "repeat", "again"]
RENEW = "if it is meant, make NEW the new baseline"


def compare_counts(base: Record, new: Record) -> tuple[Outcome, str]:
    """ok, REGRESSION with the first difference, or not judged with the reason."""
    if reason := hindrance(base, new):
        return "not judged", reason
    columns: tuple[str, ...] = (*COUNTS, *HASHES)
    if base["schedule"] == "auto":  # its lookahead follows costs that were measured before the run
        columns = OF_THE_BASELINE
    before, after = _keyed(base), _keyed(new)
    both = before.merge(after, on=KEY, suffixes=("", "_new"))
    if both.empty:
        return "not judged", "no prompt was measured in both"
    remarks = ["only the baseline's: the lookahead follows measured costs"] if columns is OF_THE_BASELINE else []
    if len(both) < max(len(before), len(after)):
        remarks.append(f"{len(both)} of {max(len(before), len(after))} samples are in both")
    outcome: Outcome = "ok"
    if difference := first_difference(both, columns):
        outcome, remarks = "REGRESSION", [difference, *remarks, RENEW]
    return outcome, "; ".join(remarks)


def hindrance(base: Record, new: Record) -> str:
    """Why two cells need not agree; empty where they must."""
    if base.samples is None or new.samples is None:
        return f"no samples.csv in {'BASE' if base.samples is None else 'NEW'}"
    for name in SAME:
        # the tag after a plus says for which accelerator torch was built: device and dtype are looked at below
        if base[name].split("+")[0] != new[name].split("+")[0]:
            return f"{name} {clean(base[name], 40)} ≠ {clean(new[name], 40)}"
    sources = [column for record in (base, new) for column in record.row if column.endswith("_source")]
    for role in dict.fromkeys(("target", "draft", *(column.removesuffix("_source") for column in sources))):
        name = f"{role}_commit" if base[f"{role}_commit"] and new[f"{role}_commit"] else f"{role}_source"
        before, after = (_source(record[name]) for record in (base, new))
        if before != after:
            return f"{name} {clean(before)} ≠ {clean(after)}"
    if base["dtype_resolved"] == "float64" and base["draft_dtype_resolved"] in {"", "float64"}:
        return ""  # near-ties are too rare there to flip between machines
    for name in ("device_name", "threads"):
        if base[name] != new[name]:
            return f"{name} {clean(base[name], 40)} ≠ {clean(new[name], 40)}, and the dtype is not float64"
    return ""


def _source(source: str) -> str:
    """A checkpoint that ships inside the package is the same wherever the package lies."""
    parts = PurePosixPath(source.replace("\\", "/")).parts
    for i in range(len(parts) - 1):
        if parts[i : i + 2] == ("specbench", "assets"):
            return "/".join(parts[i:])
    return source


def _keyed(record: Record) -> pd.DataFrame:
    """The samples with a key that is unique: ids that a CSV cell had to cut may have become equal."""
    assert record.samples is not None
    return record.samples.assign(again=record.samples.groupby(["prompt", "repeat"], sort=False).cumcount())


def first_difference(both: pd.DataFrame, columns: tuple[str, ...]) -> str:
    """The first prompt and column in which two runs differ, with both values, and how many samples do; or nothing."""
    unequal = pd.DataFrame({name: both[name] != both[f"{name}_new"] for name in columns})
    differing = unequal.any(axis=1)
    if not differing.any():
        return ""
    at = int(differing.to_numpy().argmax())
    name = columns[int(unequal.iloc[at].to_numpy().argmax())]
    row = {key: str(value) for key, value in both.iloc[at].items()}
    return (
        f"prompt {clean(row['prompt'], 40)}, repeat {clean(row['repeat'], 9)}: {name} {clean(row[name], 20)} → "
        f"{clean(row[f'{name}_new'], 20)}; {int(differing.sum())} of {len(both)} samples differ"
    )
