"""What is said while a token cache is written. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.metrics import ratio


@dataclass(frozen=True)
class Progress:
    """what: prompts or documents; how many are done, of how many (None where nobody knows).

    tokens and seconds: those of this process, which may have gone on with what another one began.
    """

    what: str
    done: int
    total: int | None
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second; NaN before any."""
        return ratio(self.tokens, self.seconds)


Watch = Callable[[Progress], None]


def unwatched(_: Progress) -> None:
    """A `Watch` that shows nothing."""
