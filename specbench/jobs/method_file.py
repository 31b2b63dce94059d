"""Method files that commands write: whether there may be one, and its text. Loads no model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import UsageError
from specbench.replacing import replace_text


def check_free(file: Path | None, overwrite: bool) -> None:
    """UsageError if nothing should, or can, be written there; asked before anything is measured."""
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"cannot write {file}: it is a folder; name a file in it")
    if file.exists() and not overwrite:
        raise UsageError(f"{file} is there already: choose another --output, or add --overwrite")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {file}: there is no folder {file.parent}")


def write_method(file: Path, content: Mapping[str, Any]) -> str:
    """Write a method that `--method` takes, and say in a line what was done."""
    from specbench.results import folder  # it needs numpy, which --help need not

    replaced = file.exists()
    with folder.writing_to(file.absolute().parent):
        replace_text(file, yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=None, allow_unicode=True,
                                          width=120))  # fmt: skip
    return f"{'replaced' if replaced else 'wrote'} {file}: specbench run --method {file}"
