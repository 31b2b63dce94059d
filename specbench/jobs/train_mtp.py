"""What `specbench train head --kind mtp` begins with: a fresh MTP module, or one that is there already.

Knows the options of a module and which functions make it; must not know how it learns or drafts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UnusableModelError
from specbench.jobs.train_data import Teaching
from specbench.jobs.train_heads import head_begun
from specbench.jobs.train_start import Begun
from specbench.models.checkpoints import pairs
from specbench.models.heads import files
from specbench.models.heads.recognition import Head
from specbench.training.heads.layouts import Asked
from specbench.training.recipe import Recipe


@dataclass(frozen=True)
class MtpStart:
    """A module that learns `steps` drafts. begin: the checkpoint that it goes on from, which may be the target itself;
    None for a fresh one. target and revision: what the target is called, and its revision where that is named."""

    target: str
    steps: int = 4
    begin: str | None = None
    revision: str | None = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "mtp", "steps": self.steps, "begin": self.begin}

    def check(self, config: Any, tokenizer: Any) -> None:
        """UnusableModelError for what is no module of the target."""
        self.found()

    def begun(self, given: Teaching, recipe: Recipe, folder: Path | None) -> Begun:
        asked = Asked(None, self.steps, given.verifier, seed=recipe.seed, begin=self.found())
        words = "a fresh MTP module" if self.begin is None else f"the MTP module of {self.begin}"
        return head_begun("mtp", words, given, recipe, asked)

    def found(self) -> Head | None:
        """The module that learning goes on from."""
        if self.begin is None:
            return None
        target = pairs.resolve(self.target, self.revision)
        checkpoint = target if self.begin == self.target else pairs.resolve(self.begin)
        head = files.find(checkpoint, target)
        if head is None or head.kind != "mtp":
            raise UnusableModelError(
                f"--from {self.begin}: it has no MTP module for {self.target}: name the target itself, if it has "
                "one, or a module that was trained for it; without --from a fresh one is made"
            )
        return head
