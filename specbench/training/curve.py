"""How far a training run is, and what came of it: its learning curve, its best figures, why it ended.

Knows figures; must not know networks, data or files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.training.evaluation import Figures


@dataclass(frozen=True)
class Point:
    """A place on the learning curve: tokens learned so far, the loss since the last point, and what is held out."""

    tokens: int
    seconds: float
    loss: float | None
    alpha: float
    accepted: float
    by_category: Mapping[str, Figures] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Point":
        return cls(**{**stored, "by_category": {name: Figures(**one) for name, one in stored["by_category"].items()}})


@dataclass
class Progress:
    """How far a run is. `loss` is the mean of the steps since the last evaluation, which are `passed`; `since` counts
    the evaluations after the best one since the first step; `seconds` are those of all processes that went on with
    it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float | None = None
    since: int = 0
    passed: int = 0
    curve: list[Point] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max((point.accepted for point in self.curve), default=0.0)

    def learned(self, loss: float, tokens: int) -> None:
        """Note a step."""
        self.loss = ((self.loss or 0.0) * self.passed + loss) / (self.passed + 1)
        self.step, self.tokens, self.passed = self.step + 1, self.tokens + tokens, self.passed + 1

    def add(self, figures: Figures, by_category: Mapping[str, Figures]) -> None:
        """Note an evaluation. The one before any step does not count: what was trained before loses at first, while the
        rate is high, and gains when it falls."""
        learned = [point.accepted for point in self.curve if point.tokens]
        better = not learned or figures.accepted > max(learned)
        self.since = 0 if better else self.since + 1
        self.curve.append(Point(self.tokens, self.seconds, self.loss, figures.alpha, figures.accepted, by_category))
        self.loss, self.passed = None, 0

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Progress":
        return cls(**{**stored, "curve": [Point.read(point) for point in stored["curve"]]})


@dataclass(frozen=True)
class Trained:
    """What came of a run: its best figures on held-out text, by category too, its curve, and why it ended."""

    figures: Figures
    by_category: Mapping[str, Figures]
    progress: Progress
    ended: str
