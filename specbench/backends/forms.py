"""The form of a method: its composition with nothing in the place of its models, for what is asked before these exist.

Knows specs and method files; must not know networks.
"""

from typing import Any

from specbench.decoding.build import build
from specbench.decoding.drafters.schedule import Schedule, scheduled
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import needs
from specbench.models.network.causal import Causal
from specbench.spec import RunSpec
from specbench.theory.costs import Costs

NOT_LOADED: Any = Causal  # the class stands for a model where only the form of a method is looked at


def form(spec: RunSpec, costs: Costs | None) -> Speculate:
    """The method of a spec with nothing in the place of its models."""
    nothing = dict.fromkeys(needs(spec.method), NOT_LOADED)
    return build(spec.method, nothing, spec.k, schedule=schedule_of(spec, costs))


def schedule_of(spec: RunSpec, costs: Costs | None) -> Schedule:
    """The rule that says how many of K tokens a drafter draws."""
    return scheduled(spec.schedule, spec.confidence, costs)
