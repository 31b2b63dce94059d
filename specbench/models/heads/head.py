"""A trained head as it was read from its files, before it is a module.

Knows kinds, formats and tensors; must not know networks, or how a head is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from specbench.wording import clean

Kind = Literal["eagle1", "eagle3", "mtp", "medusa", "pard", "peagle", "dflash", "dspark"]
Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by their names

WORDS: Mapping[Kind, str] = {
    "eagle1": "EAGLE-1",
    "eagle3": "EAGLE-3",
    "mtp": "MTP module",
    "medusa": "Medusa",
    "pard": "PARD",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "dspark": "DSpark",
}


@dataclass(frozen=True)
class Recognised:
    """What the files of a head are. format: who wrote them, where that makes a difference; "" for the authors' own.

    names: the tensors of the head by the names that modules give them, each with its name in the files. none: PARD,
    which is a whole network and is loaded as such.
    """

    kind: Kind
    format: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Head:
    """A head of some kind and format (see `Recognised`): `config` has the keys of config.json in one level.

    tensors are as stored, by the names that modules give them. folder: where it was read. name: what users call it.
    """

    kind: Kind
    format: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    folder: Path
    name: str

    @property
    def words(self) -> str:
        """What tables and errors call it."""
        return f"{WORDS[self.kind]} ({self.format} format)" if self.format else WORDS[self.kind]

    @property
    def trained_for(self) -> str | None:
        """The target that its config.json names, as whoever trained it called it."""
        about = self.config.get("speculators_config")
        verifier = about.get("verifier") if isinstance(about, Mapping) else None
        named = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
        named = named or self.config.get("base_model_name_or_path")
        return clean(named, 100) if isinstance(named, str) and named else None

    def warnings_for(self, target: str, source: str = "") -> tuple[str, ...]:
        """A line where its config.json names another target than this one, folders and owners aside; `source` is where
        that comes from, if a user calls it otherwise."""
        named = self.trained_for
        if named is None or _last(named) in (_last(target), _last(source)):
            return ()
        return (f"{self.name}: it was trained for {named}, and the target is {target}: its drafts may be worse",)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
