"""Faults of speculating engines, one class each: the step of an answer that goes wrong, as real threads report it."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.toy_engine import Answer, Draft


@dataclass(frozen=True)
class Fault:
    """text: what goes wrong. thread: the real one that it follows. shows: the condition under which it shows.
    draft: the kind of draft that it needs."""

    answer: type[Answer]
    text: str
    thread: str
    shows: str
    draft: Draft = "greedy"


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, text: str, thread: str, shows: str, draft: Draft = "greedy"
) -> Callable[[type[Answer]], type[Answer]]:
    """Enter a class into FAULTS."""

    def entered(answer: type[Answer]) -> type[Answer]:
        FAULTS[name] = Fault(answer, text, thread, shows, draft)
        return answer

    return entered
