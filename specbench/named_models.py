"""Models by the names that method files use: NAME=CHECKPOINT as text, and back.

Knows the notation; must not know what a checkpoint is or which models a method needs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

PAIR_ROLES = ("target", "draft")  # the models that every run knows; others are given a name by whoever runs it
RESERVED = (*PAIR_ROLES, "k", "schedule")  # words of method files
NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of a model; part of the names of columns
SEVERAL = re.compile(rf",(?={NAME}=)")  # what stands between two models in one text


def named_models(given: Any) -> tuple[tuple[str, str], ...]:
    """Models as they are written, in the order of their names: NAME=CHECKPOINT, some of these, or a mapping.

    One text may hold several, joined by commas, as results.csv has them. ValueError, in one line, for anything else.
    """
    items = SEVERAL.split(given) if isinstance(given, str) else given.items() if isinstance(given, Mapping) else given
    if not isinstance(items, Iterable | None):
        raise ValueError("write NAME=CHECKPOINT, or a mapping of names to checkpoints")
    found = sorted(_pair(item) for item in items or ())
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the name {twice[0]} stands for two models: give each model a name of its own")
    return tuple(found)


def _pair(item: Any) -> tuple[str, str]:
    parts = item.partition("=")[::2] if isinstance(item, str) else item
    match parts:
        case str() as name, str() as checkpoint if checkpoint and re.fullmatch(NAME, name):
            pass
        case _:
            raise ValueError(
                f"{str(item)[:60]!r} is no NAME=CHECKPOINT: the name has letters, digits, - and _, the checkpoint is "
                "an alias, a hub id, a folder, or layers of another model such as target[:50%]"
            )
    if name in RESERVED:
        raise ValueError(f"the name {name} is taken: method files mean something else by it; choose another name")
    if SEVERAL.search(checkpoint):
        raise ValueError(f"{checkpoint[:60]!r} reads like several models: rename that folder, or name it by a link")
    return name, checkpoint


def written(models: Iterable[tuple[str, str]]) -> str:
    """Models as one text."""
    return ",".join(f"{name}={checkpoint}" for name, checkpoint in models)
