"""Which numbers of a cell a table shows, in what words: of every cell, and of those that have something to say there.

Knows columns of results.csv and their names for readers; must not know how a table looks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.judge.advice import drafts_trees
from specbench.wording import number_in

Line = tuple[str, str, str]  # label, column, what it is
ROWS: tuple[Line, ...] = (
    ("prompts", "prompts", "decoded by both arms"),
    ("tokens/s baseline", "baseline_tokens_per_second", "decode only, same loop without a draft"),
    ("tokens/s method", "tokens_per_second", "decode only"),
    ("speedup", "speedup", "measured: total baseline ÷ total method time"),
    ("  95 % interval", "speedup_interval", "over prompts (jackknife)"),
    ("  predicted", "speedup_predicted", "(1−α^(K+1)) / ((1−α)(Kc+1))"),
    ("  calibrated", "speedup_calibrated", "Σ Π αᵢ / (Kc + v + overhead)"),
    ("  end to end", "speedup_end_to_end", "with prefill"),
    ("alpha", "alpha", "mean chance of acceptance per tested token"),
    ("  95 % interval", "alpha_interval", "over prompts (jackknife)"),
    ("accepted/tested", "alpha_tested", "agrees with alpha, but for block verification and lossy rules"),
    ("accepted/drafted", "accepted_per_drafted", "what many tools call acceptance rate"),
    ("drafts found", "draft_hit_rate", "rounds that drafted anything ÷ rounds"),
    ("tokens per round", "tokens_per_round", "correction or bonus included"),
    ("c", "c", "one drafted token ÷ one baseline step"),
    ("v", "v", "verify pass over all drafted nodes ÷ one-token pass of the target"),
    ("overhead", "overhead", "rest of a round ÷ one baseline step"),
    ("lossless", "lossless", "greedy output beside the baseline's (sampled or interrupted: not compared)"),
)
ROUND: Line = ("  of a round", "c_round", "all that a round drafts; of a head that drafts in one pass, that pass")
NODES: Line = ("nodes per round", "nodes_per_round", "drafted tokens in one verify pass; a tree has more than levels")
DISTANCE: Line = (
    "  distance", "law_distance", "not lossless: its output differs from the target's by so much per token (0 to 1)"
)  # fmt: skip

WAITS: tuple[Line, ...] = (  # of a report, after all others, each where it is known
    ("ms per token", "per_token_median_ms", "decode time of a prompt ÷ its new tokens, median over prompts"),
    ("  95th percentile", "per_token_p95_ms", "over prompts"),
    ("  baseline", "baseline_per_token_median_ms", "median of the baseline"),
    ("first token, ms", "ttft_median_ms", "from a request to the first piece of its answer, median"),
    ("  95th percentile", "ttft_p95_ms", "over requests"),
    ("whole answer, ms", "latency_median_ms", "from when a request came to the last piece of its answer, median"),
    ("  95th percentile", "latency_p95_ms", "over requests"),
    ("  99th percentile", "latency_p99_ms", "over requests"),
    ("tokens/s served", "served_tokens_per_second", "of all requests of a turn, prompts and waits included"),
    ("prompt read, ms", "prefill_median_ms", "median over prompts; the first token comes one round after it"),
    ("  95th percentile", "prefill_p95_ms", "over prompts"),
    ("GB of device", "peak_memory_device", "tensors at most while the method decoded, all models included"),
    ("GB of process", "peak_memory_host", "resident at most while the method decoded"),
)
LEARNING: tuple[Line, ...] = (  # after the end to end speedup
    ("  runs elsewhere", "speedup_elsewhere", "if what the draft learns were computed elsewhere"),
    ("  95 % interval", "speedup_elsewhere_interval", "as that of the speedup"),
    ("  time in updates", "update_share", "share of the method's time in which its draft was changed"),
)


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The lines of a table of these cells: what a round drafts where one drafts, nodes where one drafts trees, the
    distance where one is lossy, what it costs to learn where one does."""
    trees = any(map(drafts_trees, rows))
    lossy = any((number_in(r, "law_distance") or 0) > 0 or r.get("lossless") == "lossy" for r in rows)
    found = [*ROWS, *([DISTANCE] if lossy else [])]
    before = [column for _, column, _ in found].index("v")
    drafts = any(number_in(row, "drafted_per_round") for row in rows)
    found[before:before] = [*([ROUND] if drafts else []), *([NODES] if trees else [])]
    learning = any(number_in(row, "update_share") is not None for row in rows)
    after = [column for _, column, _ in found].index("speedup_end_to_end") + 1
    return [*found[:after], *(LEARNING if learning else ()), *found[after:]]


def report_lines(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Those lines, and what readers waited for and what it took, where that is known."""
    return [*lines_of(rows), *(line for line in WAITS if any(number_in(row, line[1]) is not None for row in rows))]
