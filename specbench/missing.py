"""What a run needs and this machine lacks, as one message: everything at once, and the one command that fetches it.

Pure; must not know where anything is looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.errors import UnusableModelError
from specbench.wording import gigabytes


@dataclass(frozen=True)
class Missing:
    """One thing that is missing. what: its role or kind; name: what the user calls it.

    alone: the whole message where nothing else is missing. reason: why it cannot simply be fetched, empty where it can.
    size: in bytes, None where nobody says.
    """

    what: str
    name: str
    alone: str
    command: str
    reason: str = ""
    size: int | None = None

    @property
    def shown(self) -> str:
        more = [gigabytes(self.size)] if self.size is not None else []
        more += [self.reason] if self.reason else []
        return f"{self.what} {self.name}" + (f" ({'; '.join(more)})" if more else "")


class MissingError(UnusableModelError):
    """Some things are missing: all of them are named."""

    def __init__(self, parts: Sequence[Missing]) -> None:
        self.parts = parts
        super().__init__(parts[0].alone if len(parts) == 1 else together(parts))


def together(parts: Sequence[Missing]) -> str:
    """All of them in one line."""
    listed, command = ", ".join(part.shown for part in parts), command_for(parts)
    why = "" if all(part.reason for part in parts) else " and the hub does not answer"
    how = f"; where there is a network, run `{command}`" if command else ""
    return f"{len(parts)} things are missing{why}: {listed}{how}"


def command_for(parts: Sequence[Missing]) -> str:
    """The one command that fetches everything that can be fetched; empty where nothing can."""
    return " && ".join(dict.fromkeys(part.command for part in parts if part.command))
