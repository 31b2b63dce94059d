"""The formulas as a function. Loads nothing heavy."""

from collections.abc import Iterable

from specbench.errors import UsageError
from specbench.judge.predictions import Prediction, predictions

KS = range(1, 13)


def predict(alpha: float, c: float, k: int | Iterable[int] = KS, *, at_once: bool = False) -> list[Prediction]:
    """Predict tokens per round, speedup and best K from an acceptance and a cost ratio, for every K.

    alpha: the chance that a tested token is accepted, 0 to 1. c: seconds of a drafted token ÷ one step of the target;
    with at_once, seconds of a whole draft, if one pass makes all tokens. UsageError if one is out of range.
    """
    ks = [k] if isinstance(k, int) else list(k)
    try:
        return predictions(alpha, c, c, ks, at_once)
    except ValueError as error:
        raise UsageError(str(error)) from error
