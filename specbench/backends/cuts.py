"""Models of a pair that are made of others when those are loaded: some of their layers, or some rows of their head.

Knows checked pairs and loaded networks; must not know methods, or how anything is decoded.
"""

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from specbench.backends.checked import CheckedPair
from specbench.models.checkpoints.reduced import special_tokens
from specbench.models.heads.parts import reduce_output
from specbench.models.network.layers import cut_of, with_layers
from specbench.models.network.reduced import known_tokens, reduce_head


def complete(
    pair: CheckedPair, modules: MutableMapping[str, Any], rollbacks: MutableMapping[str, Any], ends: Collection[int]
) -> dict[str, str]:
    """Cut the heads of loaded networks, and add those that are made of them; what was cut, in words, by the names."""
    said = {name: cut_head(pair, name, modules, ends) for name in pair.roles if name in pair.cuts}
    for name, (base, layers) in pair.kept.items():
        modules[name], rollbacks[name] = with_layers(modules[base], layers), rollbacks[base]
        if name in pair.cuts:
            said[name] = cut_head(pair, name, modules, ends)
    return said


def cut_head(pair: CheckedPair, name: str, modules: Mapping[str, Any], ends: Collection[int]) -> str:
    """Cut the head of one model in place; how many tokens it knows then, and which."""
    role = pair.roles[pair.kept.get(name, (name, ()))[0]]
    config = role.config.get_text_config(decoder=True)
    width = pair.width if role.borrows else int(config.vocab_size)
    for cut in pair.cuts[name]:
        ids = cut.kept(role.encode, width, special_tokens(role.tokenizer, ends))
        if role.borrows:
            reduce_output(modules[name], modules["target"], ids)
        else:
            reduce_head(modules[name], ids)
    known = known_tokens(modules[name], width)
    assert known is not None, "it was cut"
    sources = " and ".join(dict.fromkeys(cut.source for cut in pair.cuts[name]))
    return f"{len(known):,} of {width:,} tokens, the most frequent of {sources}"


def said(cut: Mapping[str, str]) -> str:
    """What --draft-vocabulary cut, as a column: the same whichever drafts a run has beside each other. A method that
    names a cut draft says so itself."""
    return "; ".join(dict.fromkeys(what for name, what in cut.items() if cut_of(name) is None))


def known_parts(cut: Mapping[str, str]) -> list[str]:
    """What was cut, as notes."""
    return [f"the {name} knows {what}, and drafts no other" for name, what in cut.items()]
