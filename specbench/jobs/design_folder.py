"""The folder of a design: what was asked, what was timed, every draft after every rung; so the same command goes on.

Knows files; must not know how anything is measured or trained.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.jobs.pairs import VERSIONS, in_words
from specbench.replacing import refuse_links, replace_text
from specbench.results import folder
from specbench.results.reading import DESCRIPTION
from specbench.wording import clean, first_line

LATENCIES, DRAFTS, LEARNED, METHODS, MEASURED = "latencies.json", "drafts", "learned.json", "methods", "measured"


@dataclass(frozen=True)
class Learned:
    """What a draft is worth after so many training tokens: α and tokens per round at lookahead k, on held-out text."""

    tokens: int
    alpha: float
    accepted: float
    k: int


@dataclass(frozen=True)
class Workplace:
    """The folder of one design."""

    path: Path

    @classmethod
    def open(cls, path: Path, description: Mapping[str, Any]) -> "Workplace":
        """The folder, begun or gone on with. UsageError where it holds anything else than this very design."""
        place = cls(path)
        stored = place.read(DESCRIPTION)
        if stored is not None:
            refuse_other(path, stored, description)
            refuse_links(path)
            return place
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"--output {path} is not empty and holds no draft design: name another folder")
        place.write(DESCRIPTION, description)
        return place

    def draft(self, name: str, tokens: int) -> Path:
        """Where a draft lies that has learned so many tokens."""
        return self.path / DRAFTS / name / f"tokens-{tokens}"

    def learned(self, name: str, tokens: int) -> Learned | None:
        """What that draft was worth; None where it has not been finished."""
        found = self.read(str(self.draft(name, tokens).relative_to(self.path) / LEARNED))
        return None if found is None else Learned(**found)

    def keep(self, name: str, learned: Learned) -> None:
        """Say that a draft is finished: after everything else of it has been written."""
        self.write(str(self.draft(name, learned.tokens).relative_to(self.path) / LEARNED), asdict(learned))

    def read(self, name: str) -> Any:
        """A JSON file; None where there is none. UsageError for one that is damaged."""
        file = self.path / name
        if not file.exists():
            return None
        try:
            return json.loads(read_whole(file))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{clean(file, 300)} is damaged ({first_line(error)}): delete it") from error

    def write(self, name: str, content: Mapping[str, Any] | Sequence[Any]) -> None:
        """A JSON file, replaced as a whole."""
        file = self.path / name
        with folder.writing_to(self.path):
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def refuse_other(path: Path, stored: Any, asked: Mapping[str, Any]) -> None:
    """UsageError where a folder holds another design, or was begun on other ground."""
    known = stored if isinstance(stored, dict) else {}
    if known.get("kind") != asked["kind"]:
        raise UsageError(f"--output {path} holds something else than a draft design: name another folder")
    if known.get("design") != asked["design"]:
        raise UsageError(f"--output {path} holds a draft design with other settings: name another folder")
    before, today = known.get("environment"), asked["environment"]
    if not isinstance(before, dict) or any(before.get(n) != today.get(n) for n in (*VERSIONS, "fingerprint")):
        raise UsageError(
            f"--output {path} was begun on another machine or with other versions ({in_words(before or {})}; here "
            f"{in_words(today)}), and its times would mix: name another folder"
        )
