"""Everything that some cells need from elsewhere, and whether it is here: checkpoints, data sets and extras.

Knows names, the cache and what the hub says; must not know weights or what a data set says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specbench import hub
from specbench.backends.checked import checkpoints_of, lacking_extras
from specbench.backends.roles import shipped_source
from specbench.data import sources
from specbench.missing import Missing
from specbench.models.checkpoints import missing, weights
from specbench.models.checkpoints.names import Checkpoint, download_command, fetch
from specbench.spec import RunSpec

State = Literal["here", "to fetch", "missing"]


@dataclass(frozen=True)
class Needed:
    """One thing that is needed. size: in bytes, None where nobody says; command: what fetches it, empty if it is here.

    why: of what is missing, the reason that it does not come by itself.
    """

    what: str
    name: str
    source: str
    state: State
    size: int | None = None
    command: str = ""
    why: str = ""

    @property
    def lacking(self) -> Missing:
        """As what is missing, fetchable or not."""
        return Missing(self.what, self.name, self.why, self.command, size=self.size)


def needed(specs: Sequence[RunSpec]) -> list[Needed]:
    """All of it, in the order of its roles."""
    checkpoints = checkpoints_of(specs)
    models = [of_model(role, checkpoint) for role, checkpoint in checkpoints.items()]
    data = [of_data(name) for name in dict.fromkeys(spec.dataset for spec in specs)]
    extras = lacking_extras(checkpoints, specs[0])
    return [*models, *data, *(Needed(e.what, e.name, "", "missing", None, e.command, e.alone) for e in extras)]


def of_model(role: str, checkpoint: Checkpoint) -> Needed:
    """Weights are asked for, and not fetched; what is small and describes them is."""
    about = (role, checkpoint.name, shipped_source(checkpoint.source))
    if lacking := missing.unavailable(role, checkpoint):
        return Needed(*about, "missing", lacking.size, lacking.command, lacking.alone)
    folder = fetch(checkpoint)
    files = weights.there(checkpoint, folder)
    if files or Path(checkpoint.source).exists():
        return Needed(*about, "here", sum(file.stat().st_size for file in files))
    return Needed(*about, "to fetch", missing.download_size(checkpoint), download_command(checkpoint))


def of_data(dataset: str) -> Needed:
    """A data set of the hub, or one that needs nothing from there."""
    if (source := sources.hub_file(dataset)) is None:
        return Needed("data set", dataset, "", "here")
    repository = sources.repository(dataset, source)
    if (file := hub.cached_file(repository, source.file)) is not None:
        return Needed("data set", dataset, source.repo, "here", file.stat().st_size)
    command, refusal = repository.command(source.file), hub.answer_of(repository)
    if refusal is None:
        size = hub.file_sizes(repository).get(source.file)
        return Needed("data set", dataset, source.repo, "to fetch", size, command)
    why = hub.reason(repository, refusal, source.file)
    return Needed("data set", dataset, source.repo, "missing", None, command, why)
