"""Drafting while the target verifies: a draft goes on with the text that it takes for the outcome of the round.

PEARL (Liu et al., arXiv 2408.11850, its post-verify), with the guess of SSD (arXiv 2603.03251): all drafts accepted,
and the token that the draft holds likeliest after them. Where that comes true the next chain is there already, else it
is drawn anew. Every token is drawn from the draft's row after the text that it follows in the end, and nothing that is
thrown away is ever judged; so it is the chain of `ModelDrafter`, at another time. Knows one text, B = 1; must not know
in which process either side runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.chain import Chains, drawable
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import Again, Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import STEP, Context, Draft, Verdict
from specbench.errors import UsageError


@dataclass(frozen=True)
class Chain:
    """ids [1, K] and the rows [1, K, V] they were drawn from. ready: it had been drawn when it was asked for.

    finite: whether the model's rows were numbers.
    """

    ids: Tensor
    rows: Tensor
    ready: bool
    finite: bool = True


class Partner(Protocol):
    """Who drafts for a target, wherever it does."""

    def begin(self, prompt: Sequence[int], new: int) -> None:
        """Take in a prompt, after which up to `new` tokens will be committed."""
        ...

    def draft(self, tokens: Sequence[int], rng: Source) -> Chain:
        """A chain after these further tokens of the text; what it goes on with until it is asked again is its own."""
        ...


def never(expected: Sequence[int]) -> bool:
    return False


@dataclass
class Onwards:
    """The draft's side: chains of `k` tokens from `model`, and the next one before it is asked for.

    draws: the uniforms behind the source, so that a chain that is drawn anew has those of the one it replaces; without
    them it has fresh ones.
    """

    model: Model
    k: int
    device: torch.device
    draws: Again | None = None
    _context: Context = field(init=False, repr=False)
    _last: Tensor = field(init=False, repr=False)  # [1, k] what was drafted last
    _next: tuple[list[int], Chain] | None = field(default=None, init=False, repr=False)

    @torch.no_grad()
    def begin(self, prompt: Sequence[int], new: int) -> None:
        """Take in a prompt; `new` as in `Partner`."""
        self._context, self._next = begin([prompt], new, 2 * self.k + 2, [], self.device), None
        self.model.start(self._context)

    @torch.no_grad()
    def draft(self, tokens: Sequence[int], rng: Source) -> Chain:
        """See `Partner`: the chain that was made for this text, or one that is drawn now."""
        guess, self._next = self._next, None
        self._context = longer(self._context, self._context.seq.new_tensor([list(tokens)]), self.k)
        if guess is not None and guess[0] == list(tokens):
            chain = guess[1]
        else:
            if self.draws is not None:
                self.draws.anew()
            chain = self._drawn(self._context, rng, never, [])
        self._last = chain.ids
        return chain

    @torch.no_grad()
    def go_on(self, rng: Source, stop: Callable[[Sequence[int]], bool] = never) -> None:
        """Draw the next chain for the likeliest outcome; `stop` is asked after every pass, with the tokens that the
        chain is for, whether it is known not to be wanted."""
        if self.draws is not None:
            self.draws.onwards()
        accepted = longer(self._context, self._last, self.k)
        scores = self.model.expand(accepted, TokenTree.chain(self._last[:, :0]), 0, refeed=1, raw=True)
        token = scores[:, 0].argmax(-1, keepdim=True)
        expected = [*self._last[0].tolist(), int(token)]
        if not stop(expected):
            chain = self._drawn(longer(accepted, token, self.k), rng, stop, expected)
            if chain.ids.shape[1] == self.k:
                self._next = expected, replace(chain, ready=True)

    def _drawn(
        self, context: Context, rng: Source, stop: Callable[[Sequence[int]], bool], expected: Sequence[int]
    ) -> Chain:
        def after(ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
            return stop(expected)

        ids, rows = self.model.sample(context, self.k, rng, 1, after)
        return Chain(ids, rows, False, bool(context.finite.all()))


def longer(context: Context, tokens: Tensor, k: int) -> Context:
    """The text with further tokens [1, n], where passes read what a round of K drafts needs; the given one stays."""
    seq, end = context.seq.clone(), int(context.pos) + 1
    seq[:, end : end + tokens.shape[1]] = tokens
    needed = end + tokens.shape[1] + k
    reach = min(seq.shape[1], -(-needed // STEP) * STEP)
    return replace(context, seq=seq, pos=context.pos + tokens.shape[1], reach=reach, finite=context.finite.clone())


@dataclass
class InTurn:
    """A partner in the process of the target: it saves no time, and shows how often it would.

    source: of its draws, where they are not to be those of the loop.
    """

    onwards: Onwards
    source: Source | None = None

    def begin(self, prompt: Sequence[int], new: int) -> None:
        self.onwards.begin(prompt, new)

    def draft(self, tokens: Sequence[int], rng: Source) -> Chain:
        chain = self.onwards.draft(tokens, self.source or rng)
        self.onwards.go_on(self.source or rng)
        return chain


@dataclass
class WhileVerifying(Chains):
    """The target's side: chains of `k` tokens from a partner, which goes on while they are verified.

    ready: of every draft since the text began, whether it was there when it was asked for; the first one never is.
    """

    partner: Partner
    k: int
    ready: list[bool] = field(default_factory=list, init=False)
    _known: int = field(default=0, init=False)  # the last place whose token the partner has
    static: ClassVar[bool] = False  # the host tells the partner what became of every round
    drawn: ClassVar[bool] = True
    adapts: ClassVar[str] = ""
    carries: ClassVar[None] = None

    def start(self, context: Context) -> None:
        """Take in the prompt; UsageError for more than one."""
        if context.rows != 1:
            raise UsageError("drafting while verifying decodes one text at a time: leave out --batch")
        self._known, self.ready = int(context.pos), []
        self.partner.begin(context.seq[0, : self._known + 1].tolist(), int(context.last) - self._known)

    def admit(self, context: Context, row: int) -> None:
        self.start(context)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """As many as a static drafter without a budget draws: every row has those that it can use."""
        end = int(context.pos)
        chain = self.partner.draft(context.seq[0, self._known + 1 : end + 1].tolist(), rng)
        self._known = end
        self.ready.append(chain.ready)
        context.finite &= chain.finite
        ids, rows = chain.ids.to(context.seq.device), chain.rows.to(context.seq.device)
        usable = torch.arange(self.k, device=ids.device) < drawable(context, self.k).unsqueeze(1)
        return Draft(TokenTree.chain(ids), rows, usable)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        return
