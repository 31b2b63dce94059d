"""What the parts of a round cost, as a schedule and a prediction read it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What the parts of a round cost, in baseline decode steps; measured before a run, never inside one.

    first, later: the first drafted token of a round (it feeds two tokens) and every other one; verify[K]: the target's
    pass over K + 1 tokens; overhead: everything else of a round.
    """

    first: float
    later: float
    verify: tuple[float, ...]
    overhead: float

    def rounds(self, k: int) -> tuple[float, ...]:
        """The cost of a round with a lookahead of 1..k; behind its end `verify` goes on as it ended."""
        known = self.verify
        slope = known[-1] - known[-2] if len(known) > 1 else 0.0
        verify = [known[n] if n < len(known) else known[-1] + slope * (n + 1 - len(known)) for n in range(1, k + 1)]
        return tuple(self.first + n * self.later + v + self.overhead for n, v in enumerate(verify))
