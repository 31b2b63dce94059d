"""What a cell that chooses its method chose, and what the choosing cost: columns of results.csv.

Knows samples; must not know how a choice is made.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.metrics import ratio
from specbench.results.samples import Sample

COLUMNS = ("chosen", "choosing_cost")


def chosen_columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Each choice with the number of its turns, the most frequent first; and by how much longer all prompts took than
    at the seconds per token of that one. None of cells that choose nothing."""
    turns = {one.turn: one.method.choice for one in samples if one.method.choice}
    if not turns:
        return dict.fromkeys(COLUMNS)
    counted = Counter(turns.values()).most_common()
    favourite = [one for one in samples if one.method.choice == counted[0][0]]
    cost = ratio(seconds_per_token(samples), seconds_per_token(favourite)) - 1
    return {"chosen": ", ".join(f"{choice} ×{count}" for choice, count in counted), "choosing_cost": cost}


def seconds_per_token(samples: Sequence[Sample]) -> float:
    return ratio(math.fsum(one.method.seconds for one in samples), sum(len(one.method.tokens) for one in samples))
