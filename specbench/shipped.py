"""Where the files lie that ship with specbench: configs and assets, in a checkout as in an installed wheel."""

from pathlib import Path

PACKAGE = Path(__file__).parent
ASSETS = PACKAGE / "assets"
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
