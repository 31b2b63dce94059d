"""How many acknowledged lines are lost when a run is killed at random moments? Run it with

    python -m tests.benchmarks.kills [KILLS]

Every run is killed up to five times, each time after a random part of 150 ms, then left to end; its result is compared
with that of a run that nobody touched. The goal is 0 lost lines, 0 unreadable journals and 0 different results.
"""

import sys
import tempfile
from pathlib import Path

from tests.support.killed_runs import ordeal, outcome, whole


def main(goal: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parent = Path(folder)
        expected = outcome(whole(parent))
        kills = lost = torn = different = runs = 0
        while kills < goal:
            found = ordeal(parent, f"run{runs}", kills=5, seed=runs, longest=0.15)
            kills, lost, torn, runs = kills + found.kills, lost + found.lost, torn + found.torn, runs + 1
            different += found.outcome != expected
    print(f"{'runs':>6} {'kills':>6} {'torn lines':>11} {'lost lines':>11} {'different results':>18}")
    print(f"{runs:6} {kills:6} {torn:11} {lost:11} {different:18}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
