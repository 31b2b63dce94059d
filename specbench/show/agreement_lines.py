"""What is said of engines that should have accepted the same drafted tokens.

Knows agreements; must not know how they are found.
"""

from collections.abc import Iterable, Iterator

from specbench.results.cells import Agreement
from specbench.wording import counted


def agreement_lines(found: Iterable[Agreement]) -> Iterator[str]:
    """One line for every two engines on a cell."""
    for one in found:
        names = [str(cell.resolved.get("engine")) for cell in (one.one, one.other)]
        said = f"the same drafted tokens are accepted on {one.verdicts}"
        said += f", on {one.counts} as many, and which is told by nobody" if one.counts else ""
        said += f", others on {one.different}: not the same draft, or rounding decides" if one.different else ""
        spec, prompts = one.one.spec, counted(one.prompts, "prompt")
        yield (
            f"{spec.dataset}, {spec.method}, K {spec.k}: {' and '.join(names)} give equal texts on {one.equal} of "
            f"{prompts}; of these {said}"
        )
