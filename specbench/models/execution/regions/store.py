"""Code of regions on disk, by what it does and where: a later process compiles nothing that an earlier one compiled.

Knows files and what they depend on; must not know what a region computes. Beside them lies the machine code that
inductor keeps.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from specbench.models.execution.compiled import by_few_rows, capabilities
from specbench.models.execution.regions.code import Code, Layout, compiled
from specbench.models.execution.regions.cut import Region
from specbench.models.execution.regions.folder import ALONE_FILE, open_ours, own, place, tidy
from specbench.replacing import replace_text

FORMAT = 4  # of the files; another one, too, when `few_rows` or what settings do not say has changed
MACHINE_CODE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass
class Store:
    """Code of regions that were compiled with the same settings; kept in `folder` where nobody else writes there."""

    settings: Mapping[str, Any]
    folder: Path = field(default_factory=place)
    compiled: int = field(default=0, init=False)
    _known: dict[str, Code] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # torch's own folder is a temporary one, and torch writes its name here as soon as it is asked for
        usual = (default_cache_dir(), str(self.folder / "machine"))
        self.folder = own(self.folder)
        if os.environ.get(MACHINE_CODE, usual[0]) in usual:
            os.environ[MACHINE_CODE] = str(self.folder / "machine")

    def code(self, region: Region) -> Code:
        """The code of a region, compiled here if it never was. Raises UncutError."""
        key = hashlib.sha256(f"{self._where} {region.key}".encode()).hexdigest()
        if key not in self._known:
            file = self.folder / "regions" / f"{key}.json"
            self._known[key] = read(file) or self._compiled(region, file)
        return self._known[key]

    @property
    def _where(self) -> str:
        """What code depends on besides what it computes."""
        machine = [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), capabilities()]
        about = [FORMAT, torch.__version__, machine, dict(self.settings), by_few_rows()]
        return json.dumps(about, default=str)

    def _compiled(self, region: Region, file: Path) -> Code:
        code = compiled(region, self.settings)
        self.compiled += 1
        with suppress(OSError):  # a full disk costs the next process time, and this one nothing
            replace_text(file, json.dumps(asdict(code)), ALONE_FILE)
            tidy(self.folder)
        return code


def read(file: Path) -> Code | None:
    """The code in a file; None where there is none, no whole one, or one that others may have written."""
    try:
        with open_ours(file) as opened:
            found = json.load(opened)
        constants = {name: Layout(tuple(one.pop("weights")), **one) for name, one in found["constants"].items()}
        code = Code(found["source"], constants, found["numbers"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return code
