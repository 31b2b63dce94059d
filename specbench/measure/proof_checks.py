"""The proofs as checks: every method over tables, some through networks and caches, and a broken one that must be seen.

Knows method files; must not know the user's pair. What is proven is the code of this installation, as it is imported.
"""

from collections.abc import Callable, Sequence

from specbench.decoding.proofs.exact import EXACT
from specbench.decoding.proofs.methods import control_error, prove, said_lossless
from specbench.measure import network_proof
from specbench.results.documents import CACHED, CONTROL, PROOF, Check, Outcome

SEEN = 1e-3  # the error of a broken method is far above that of rounding

Watch = Callable[[str], None]  # called with what begins


def proof_checks(methods: Sequence[str], watch: Watch) -> list[Check]:
    """All proofs; UsageError where a method file is wrong."""
    watch("a method that is broken on purpose")
    error = control_error()
    found = [Check(CONTROL, "ok" if error > SEEN else "FAILED", found=error, limit=SEEN, detail="must be seen: above")]
    for name in methods:
        watch(f"proof of {name}")
        found.append(method_check(name))
    for name in network_proof.METHODS:
        if name in methods:
            watch(f"proof of {name} with a cache")
            found.append(cached_check(name))
    return found


def method_check(name: str) -> Check:
    """The joint distribution of what a method emits, held against its target's."""
    proof, lossless = prove(name), said_lossless(name)
    if not proof.sizes:
        return Check(PROOF, "not checked", name, detail="a round of it has too many outcomes to enumerate")
    detail = f"largest error of a probability, {proof.sizes} sizes"
    return Check(PROOF, decided(proof.error, lossless), name, proof.error, EXACT if lossless else None, detail)


def decided(error: float, lossless: bool) -> Outcome:
    """A lossy method is not exact, and says so: nothing is demanded of it."""
    return ("ok" if error <= EXACT else "FAILED") if lossless else "lossy"


def cached_check(name: str) -> Check:
    """The same through a tiny network whose cache is rolled back."""
    error = network_proof.network_error(name)
    return Check(CACHED, decided(error, lossless=True), name, error, EXACT, "largest error of a probability")
