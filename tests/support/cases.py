"""Cases of a parametrised test: those that every run takes, and those that continuous integration adds."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick_or_slow(cases: Iterable[Any], quick: Callable[..., bool]) -> list[Any]:
    """All cases, of one value or a tuple of them each; where `quick` says no, they are marked slow."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*some, marks=() if quick(*some) else pytest.mark.slow) for some in values]
