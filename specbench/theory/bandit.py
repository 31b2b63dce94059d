"""The choice between methods for the next prompts: a bandit over methods and lookaheads, for `--method auto`.

The unit is a batch of an engine, since every arm is compiled separately; BanditSpec (Hou et al. 2025, arXiv
2505.15141) and MetaSD (Kim et al. 2024) choose round by round. Tokens/s is learned as tokens per round ÷ seconds
per round: seconds hardly vary from prompt to prompt, and a chain of K tokens shows the output of every shorter one.
A lookup is judged by every text, whichever arm decoded it ("Not-a-Bandit", Liu et al. 2025, arXiv 2510.20064).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.metrics import RoundCounts, branched, ratio

WIDTH = 0.5  # exploration bonus of a method in standard errors, times √log of the decodes so far
SPREAD = 0.25  # prior of the standard deviation of log tokens per round between prompts
GUESS = 4.0  # its weight in decodes


@dataclass(frozen=True)
class Arm:
    """One choice: lookaheads of the same `method` share the evidence on its acceptance."""

    method: str
    k: int


@dataclass(frozen=True)
class Decoded:
    """The results of one arm on the prompts of one turn; without seconds, simulated on another arm's texts."""

    arm: Arm
    texts: Sequence[Sequence[RoundCounts]]  # the rounds of every prompt
    seconds: float | None

    @property
    def rounds(self) -> list[RoundCounts]:
        return [one for text in self.texts for one in text]


@dataclass
class Bandit:
    """Chooses the arm with the most tokens per second by the upper confidence bound of its method
    (UCB, Auer et al. 2002); untried arms come first. `seen` is all that it learns from."""

    arms: Sequence[Arm]
    seen: list[Decoded] = field(default_factory=list)

    def choose(self) -> Arm:
        known = {one.arm for one in timed(self.seen)}
        if unknown := [arm for arm in self.arms if arm not in known]:
            return unknown[0]
        rates, doubt = self.rates(), self.doubts()
        return max(self.arms, key=lambda arm: math.log(rates[arm]) + doubt[arm.method])

    def rates(self) -> dict[Arm, float]:
        """Tokens per second of every arm with evidence."""
        known = dict.fromkeys(one.arm for one in timed(self.seen))
        return {arm: tokens_per_round(arm, self.seen) / seconds_per_round(arm, self.seen) for arm in known}

    def doubts(self) -> dict[str, float]:
        """The exploration bonus on the log of every method's rate; 0 if no draft is judged."""
        wide = WIDTH * math.sqrt(math.log(max(len(timed(self.seen)), 1)))
        drafts = {one.arm.method for one in self.seen if any(r.drafted for r in one.rounds)}
        logs = {method: log_tokens(method, self.seen) for method in dict.fromkeys(arm.method for arm in self.arms)}
        return {m: wide * spread(some) / math.sqrt(len(some)) if m in drafts else 0.0 for m, some in logs.items()}


def timed(seen: Sequence[Decoded]) -> list[Decoded]:
    """The results with measured times."""
    return [one for one in seen if one.seconds is not None]


def seconds_per_round(arm: Arm, seen: Sequence[Decoded]) -> float:
    own = [one for one in timed(seen) if one.arm == arm]
    return ratio(math.fsum(one.seconds or 0.0 for one in own), sum(len(one.rounds) for one in own))


def tokens_per_round(arm: Arm, seen: Sequence[Decoded]) -> float:
    """Emitted tokens ÷ rounds, over the decodes with this lookahead and, simulated with it, longer
    ones of its method. Trees of other sizes are other drafts: then only its own decodes count."""
    same = [one for one in seen if one.arm.method == arm.method and one.arm.k >= arm.k]
    if any(branched(rounds) for one in same for rounds in one.texts):
        same = [one for one in same if one.arm == arm]
    texts = [(one.arm.k, rounds) for one in same for rounds in one.texts]
    tokens = sum(r.emitted for _, rounds in texts for r in rounds)
    return ratio(tokens, sum(rounds_with(arm.k, longer, rounds) for longer, rounds in texts))


def rounds_with(k: int, longer: int, rounds: Sequence[RoundCounts]) -> int:
    """The number of rounds with k ≤ longer for a text decoded with the lookahead `longer`: the
    tokens up to the next rejection are one stretch, of which a round emits k + 1 tokens at most."""
    found, stretch = 0, 0
    for one in rounds:
        stretch += one.emitted
        if one.accepted < longer or not longer:
            found, stretch = found + -(-stretch // (k + 1)), 0
    return found + -(-stretch // (k + 1))


def log_tokens(method: str, seen: Sequence[Decoded]) -> list[float]:
    """The log of the tokens per round of every decode of a method."""
    counts = [(sum(r.emitted for r in one.rounds), len(one.rounds)) for one in seen if one.arm.method == method]
    return [math.log(tokens / rounds) for tokens, rounds in counts if tokens]


def spread(logs: Sequence[float]) -> float:
    """The standard deviation of these between decodes, combined with the prior."""
    mean = math.fsum(logs) / len(logs)
    total = SPREAD**2 * GUESS + math.fsum((one - mean) ** 2 for one in logs)
    return math.sqrt(total / (GUESS + len(logs) - 1))
