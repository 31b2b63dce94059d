"""A repository of the hub: what it is called, where it is looked at, and the command that fetches it.

Pure; must not ask the hub anything.
"""

import re
from dataclasses import dataclass

COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """A repository at a revision; None is its main branch. `name` is what the user called it.

    `gated`: known to ask for a login, also where nobody can be asked.
    """

    id: str
    revision: str | None = None
    name: str = ""
    kind: str = "model"
    gated: bool = False

    @property
    def subject(self) -> str:
        """As a sentence begins with it; an id that the user gave stands there once."""
        return self.id if self.name in ("", self.id) else f"{self.name} ({self.id})"

    @property
    def url(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.id}"

    def command(self, file: str = "") -> str:
        """What fetches all of it, or one file, where there is a network."""
        kind = " --repo-type dataset" if self.kind == "dataset" else ""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.id}{' ' * bool(file)}{file}{kind}{revision}"
