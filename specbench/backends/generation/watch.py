"""What one call of `generate()` does, seen from its passes: where rounds begin, what they draft, how long each takes.

Knows hooks, clocks and counts; must not know prompts, methods or what is asked of `generate()`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.decoding.timing import Clock
from specbench.errors import UnusableModelError
from specbench.metrics import RoundCounts, Trace

STEP = RoundCounts(0, 0, 0, 1, ())


@dataclass
class Watch:
    """One call at a time. drafts: (tokens before a round, the tokens that it drafted); passes: of the target, and of
    what drafts."""

    clock: Clock
    drafts: list[tuple[int, Tensor]] = field(default_factory=list)
    passes: list[int] = field(default_factory=lambda: [0, 0])
    drafting: bool = False

    def begin(self) -> None:
        self.drafts, self.passes, self.drafting = [], [0, 0], False
        self.clock.start()

    def target(self, network: Any) -> None:
        """Watch the passes of a target, which may draft itself, with fewer of its layers."""
        network.register_forward_pre_hook(lambda *_: None if self.drafting else self.before())
        network.register_forward_hook(lambda *_: self.after(self.drafting))

    def assistant(self, network: Any) -> None:
        """Watch the passes of a network that drafts."""
        network.register_forward_hook(lambda *_: self.after(True))

    def generator(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The method that makes a candidate generator, made so that every draft is seen."""

        def made(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            propose = found.get_candidates

            def proposed(ids: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
                self.before()
                self.drafting = True
                candidates, logits = propose(ids, **more)
                self.drafting = False
                self.clock.lap("draft")
                self.drafts.append((ids.shape[1], candidates[:, ids.shape[1] :]))
                return candidates, logits

            found.get_candidates = proposed
            return found

        return made

    def deepest(self, layer: Any) -> None:
        """Watch the last layer of a target that exits early: it must have no part in a draft."""

        def called(*_: Any) -> None:
            if self.drafting:
                raise UnusableModelError(
                    "the code of this architecture ignores an early exit, so that all layers would draft: use "
                    "--backend native"
                )

        layer.register_forward_pre_hook(called)

    def before(self) -> None:
        """What was done since the last pass or draft ended was judging, or the beginning of the call."""
        self.clock.lap("accept" if self.passes[0] else "prefill/begin")

    def after(self, drafting: bool) -> None:
        """A pass has ended; the first one of each network reads the prompt."""
        self.passes[drafting] += 1
        name = "draft" if drafting else "verify"
        self.clock.lap(f"prefill/{name}" if self.passes[drafting] == 1 else name)

    def end(self) -> tuple[float, dict[str, float]]:
        """(seconds, seconds by phase) of the call."""
        return self.clock.stop()

    def trace(self, prompt: int, tokens: Sequence[int], new: int, seconds: float, spans: dict[str, float]) -> Trace:
        """What a call left behind that gave these tokens, at most `new`, after a prompt of so many."""
        prefill = spans.get("prefill/begin", 0.0)
        found = {name: spans.get(name, 0.0) for name in ("draft", "verify", "accept")}
        for name, passes in zip(("verify", "draft"), self.passes, strict=True):
            first = spans.get(f"prefill/{name}", 0.0)
            later = min(first, found[name] / (passes - 1)) if passes > 1 else first
            prefill, found[name] = prefill + first - later, found[name] + later
        return Trace(tuple(tokens), self.rounds(prompt, tokens, new), seconds - prefill, prefill, found)

    def rounds(self, prompt: int, tokens: Sequence[int], new: int) -> tuple[RoundCounts, ...]:
        """The counts of every round."""
        if not self.drafts:
            return (STEP,) * len(tokens)
        if len(self.drafts) != self.passes[0]:
            raise RuntimeError(f"{len(self.drafts)} drafts were judged in {self.passes[0]} passes of the target")
        begins = [begun - prompt for begun, _ in self.drafts]
        emitted = [tokens[a:b] for a, b in zip(begins, [*begins[1:], len(tokens)], strict=True)]
        drafted = [ids[0].tolist() for _, ids in self.drafts]
        left = [new - begun for begun in begins]
        return tuple(counted(*one) for one in zip(drafted, emitted, left, strict=True))


def counted(drafted: Sequence[int], emitted: Sequence[int], left: int) -> RoundCounts:
    """A round by its tokens, with so many left to be decoded, the last of which is the target's own.

    A token was accepted where it is the drafted one: what is emitted instead of a rejected token is drawn from what the
    target gives beyond the draft, which is nothing for that token. How it turned out stands for the chance of it.
    """
    usable = min(len(drafted), left - 1)
    same = [a == b for a, b in zip(drafted[:usable], emitted, strict=False)]
    accepted = same.index(False) if False in same else len(same)
    tested = accepted + (accepted < min(usable, len(emitted)))  # none after the end of the sequence
    overlap = (1.0,) * accepted + (0.0,) * (tested - accepted)
    return RoundCounts(len(drafted), tested, accepted, len(emitted), overlap, surplus=len(drafted) - usable)
