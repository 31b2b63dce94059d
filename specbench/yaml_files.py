"""YAML that somebody wrote, as plain values: of bounded size, every key once, nothing that contains itself.

Knows YAML; must not know what the keys mean.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from specbench.files import read_whole

LARGEST = 128 << 10  # bytes of a file; the parser takes a second for them
MOST = 20_000  # values in it, those that an alias repeats counted again: a few lines can stand for billions
DIGITS = 40  # of a whole number; Python refuses to print very long ones
INTEGER = "tag:yaml.org,2002:int"


def read_yaml(path: Path) -> Any:
    """What a file says. OSError where it cannot be read, ValueError, in one line, where it is no YAML of this kind."""
    return parsed(read_whole(path, LARGEST).decode("utf-8"))


def parsed(text: str) -> Any:
    """What a text says; ValueError, in one line, where it is no YAML, has a key twice, contains itself or is too much.

    The text is that of one document; of YAML's tags only the plain ones are known.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if values_in(node, set(), {}) > MOST:
            raise ValueError(f"it stands for more than {MOST:,} values, with those that aliases repeat")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def values_in(node: Node, around: set[int], known: dict[int, int]) -> int:
    """How many values a node stands for, aliases followed; `around` are the nodes that it stands in."""
    if id(node) in around:
        raise ValueError(f"line {line_of(node)}: this value contains itself")
    if id(node) not in known:
        around.add(id(node))
        check(node)
        known[id(node)] = 1 + sum(values_in(one, around, known) for one in inside(node))
        around.discard(id(node))
    return known[id(node)]


def inside(node: Node) -> list[Node]:
    """The nodes that a node directly consists of."""
    if isinstance(node, MappingNode):
        return [one for pair in node.value for one in pair]
    return node.value if isinstance(node, SequenceNode) else []


def check(node: Node) -> None:
    """ValueError for a mapping with a key twice, of which YAML would keep the last, and for an endless number."""
    if isinstance(node, MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, ScalarNode))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"line {line_of(node)}: the key {twice[0][:60]!r} stands there twice")
    elif node.tag == INTEGER and len(node.value) > DIGITS:
        raise ValueError(f"line {line_of(node)}: a number of more than {DIGITS} digits")


def line_of(node: Node) -> int:
    """The line in which a node begins, from 1."""
    return int(node.start_mark.line) + 1
