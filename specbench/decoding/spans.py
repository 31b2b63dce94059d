"""Spans of a text between tokens that open and close them, such as those in which a model thinks aloud.

Knows tokens and where they lie; must not know what is done differently inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree, ancestors, constant
from specbench.decoding.types import Context


@dataclass(frozen=True)
class Spans:
    """From after a token of `opens` up to and with the next of `closes`; from the beginning, too, where texts have
    `begun` inside."""

    opens: Sequence[int] = ()
    closes: Sequence[int] = ()
    begun: bool = False

    def inside(self, context: Context) -> Tensor:
        """[B] bool: whether the token after the last committed one lies inside. The prompt counts: templates of chats
        open a span in it, or close one."""
        place = torch.arange(context.seq.shape[1], device=context.seq.device)
        marks = self._marks(context.seq) * (place <= context.pos.unsqueeze(1))
        last = (2 * (place + 1) * (marks != 0) + (marks > 0)).amax(1)
        return torch.where(last > 0, last % 2 == 1, self.begun)

    def at_nodes(self, context: Context, tree: TokenTree) -> Tensor:
        """[B, n + 1] bool: the same of the token after the last committed one (row 0), and after every node."""
        root = self.inside(context).unsqueeze(1)
        if not tree.size:
            return root
        marks = self._marks(tree.ids)
        depths = constant(tree.topology.depths, marks.device)
        above = ancestors(tree.parents, marks.device)  # every node is one of its own
        last = (above * (2 * depths * (marks != 0) + (marks > 0)).unsqueeze(1)).amax(-1)
        return torch.cat([root, torch.where(last > 0, last % 2 == 1, root)], 1)

    def _marks(self, ids: Tensor) -> Tensor:
        """1 for tokens that open a span, -1 for those that close one, else 0."""
        opens, closes = (constant(tuple(some), ids.device) for some in (self.opens, self.closes))
        return torch.isin(ids, opens).long() - torch.isin(ids, closes).long()


EVERYWHERE = Spans(begun=True)
