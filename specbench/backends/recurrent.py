"""What a pair with a recurrent state can do, said before its weights are read.

Knows configurations, specs and the forms of methods; must not know networks.
"""

from collections.abc import Sequence

from specbench.backends.checked import CheckedPair
from specbench.backends.forms import form
from specbench.errors import UsageError
from specbench.models.checkpoints.description import recurrent
from specbench.models.execution.compiled import EAGER, Name
from specbench.models.network.probe import Rollback
from specbench.spec import RunSpec

CHAINS = "baseline, chain, block, token-match, prompt-lookup, suffix-lookup, maxgram, jacobi"  # among those that work
REPLAY = "rejected tokens are taken back by a copy of its state, and accepted ones read again: that is part of"
SINGLE = "it goes on from a state by one token at a time only"


def roles(pair: CheckedPair) -> list[str]:
    """The roles whose networks keep a recurrent state."""
    return [name for name, role in pair.roles.items() if recurrent(role.config)]


def checked(pair: CheckedPair, specs: Sequence[RunSpec]) -> tuple[Name, str]:
    """The tier of such a pair, and what to know about it. UsageError, saying what works, for what does not."""
    name = roles(pair)[0]
    keeps = f"{pair.roles[name].checkpoint.name} ({pair.roles[name].config.model_type}) keeps a recurrent state"
    for part, (base, _) in pair.kept.items():
        if base in roles(pair):
            raise UsageError(f"{part}: {keeps}, and drafts from some of its layers are not known: methods are {CHAINS}")
    for spec in specs:
        if form(spec, None).drafter.branches:
            raise UsageError(f"--method {spec.method} drafts trees, and {keeps}, which has no branches: take {CHAINS}")
        if spec.batch > 1:
            raise UsageError(f"--batch {spec.batch}: {keeps}, which has no padding: take --batch 1")
        if spec.tier not in ("auto", "eager"):
            raise UsageError(f"--tier {spec.tier}: {keeps}, and its passes vary in length: take --tier eager")
    return "eager", f"{keeps}; {EAGER.partition(';')[0]}"


def notes(role: str, rollback: Rollback) -> list[str]:
    """What a user should know about a network, by how tokens are taken back from it."""
    if rollback == "position":
        return []
    cost, width = ("v", ", so v is about K + 1") if role == "target" else ("c", "")
    return [f"{role}: {REPLAY} {cost}{f'; {SINGLE}{width}' if rollback == 'single' else ''}"]
