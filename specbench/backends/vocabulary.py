"""Which rule joins a draft with another tokenizer to its target, and what is said of it.

Knows roles and vocabularies; must not know models, or how text is split.
"""

from collections.abc import Mapping
from typing import Any, Literal

from specbench.backends.roles import Role
from specbench.models.checkpoints.tokenizers import spelling_of
from specbench.models.checkpoints.vocabularies import Vocabularies


def both(target: Role, role: Role, name: str, wanted: Literal["auto", "common", "strings"]) -> Vocabularies:
    """Both vocabularies of a draft with another tokenizer. UnusableModelError or UsageError where no rule does."""
    ours, theirs = (int(one.config.get_text_config(decoder=True).vocab_size) for one in (target, role))
    found = Vocabularies(spelling_of(target.tokenizer), spelling_of(role.tokenizer), ours, theirs, name, wanted)
    _ = found.rule
    return found


def said(found: Vocabularies, context: int, longest: int) -> str:
    """What a user should know, in one line: which rule it is, what is common, and how far the draft reads."""
    rule = {
        "common": "it drafts tokens that both have",
        "strings": "its text is written anew in the target's tokens, by the host in every round",
    }[found.rule]
    reads = f"; it reads {context} of its own tokens only" if context < longest else ""
    return f"vocabulary {found.rule}: the {found.name} has another tokenizer; {found.shared}; {rule}{reads}"


def columns(foreign: Mapping[str, Vocabularies]) -> dict[str, Any]:
    """As columns: the rule of every such model, named where there are several, and what is common."""
    rules = [found.rule if name == "draft" else f"{name} {found.rule}" for name, found in foreign.items()]
    shared = [found.shared for found in foreign.values()]
    return {"vocabulary_resolved": ", ".join(rules), "vocabulary_shared": "; ".join(shared)}
