"""What is seen of a call: how its seconds are divided, and what the tokens of a round say about it."""

import pytest
import torch

from specbench.backends.engines.generate import Watch, counted
from specbench.decoding.timing import WallClock
from specbench.metrics import RoundCounts


def test_a_first_pass_is_prefill_but_for_what_a_later_one_takes() -> None:
    times = iter([0.0, 1.0, 11.0, 12.0, 14.0, 15.0, 17.0, 18.0])
    watch = Watch(WallClock(lambda: next(times)))
    watch.begin()  # at 0
    for _ in range(3):
        watch.before()  # at 1, after the beginning; at 12 and 15, after judging
        watch.after(False)  # the prompt in 10 seconds, every other token in 2
    trace = watch.trace(5, [7, 8, 9], 3, *watch.clock.stop())
    assert (trace.prefill_seconds, trace.seconds) == (1 + 8, 9)
    assert trace.spans == {"draft": 0.0, "verify": 6.0, "accept": 2.0}
    assert trace.rounds == (RoundCounts(0, 0, 0, 1, ()),) * 3


def test_a_draft_reads_the_prompt_as_well() -> None:
    times = iter([0.0, 0.0, 5.0, 6.0, 6.0, 6.0, 16.0, 17.0, 18.0, 19.0, 19.0, 19.0, 21.0, 21.0])
    watch = Watch(WallClock(lambda: next(times)))
    watch.begin()

    class Drafts:
        def get_candidates(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
            for _ in range(2):
                watch.after(True)
            return torch.cat([ids, torch.tensor([[1, 2]])], 1), None

    made = watch.generator(Drafts)()
    for length in (3, 4):
        made.get_candidates(torch.zeros((1, length), dtype=torch.long))
        watch.before()
        watch.after(False)
    trace = watch.trace(3, [9, 1, 2, 9], 4, *watch.clock.stop())
    later = (1 + 1 + 1) / 3  # seconds of the passes of the draft after the first one, in which it read the prompt
    assert trace.prefill_seconds == pytest.approx((5 - later) + (10 - 2))
    assert trace.seconds + trace.prefill_seconds == pytest.approx(21.0)
    assert trace.spans["draft"] == pytest.approx(3 + later)
    assert [(one.drafted, one.accepted, one.emitted) for one in trace.rounds] == [(2, 0, 1), (2, 2, 3)]


def test_the_only_pass_of_a_call_is_decoding_and_drafts_not_judged_one_by_one_are_no_rounds() -> None:
    times = iter([0.0, 1.0, 11.0, 12.0])
    watch = Watch(WallClock(lambda: next(times)))
    watch.begin()
    watch.before()
    watch.after(False)
    trace = watch.trace(5, [7], 1, *watch.clock.stop())
    assert (trace.prefill_seconds, trace.seconds) == (1.0, 11.0)
    watch = Watch(WallClock(), drafts=[(3, torch.tensor([[1]]))], passes=[2, 1])
    with pytest.raises(RuntimeError, match="1 drafts were judged in 2 passes"):
        watch.rounds(3, [1, 2], 2)


@pytest.mark.parametrize(
    ("drafted", "emitted", "left", "expected"),
    [
        ([4, 5, 6], [4, 5, 6, 7], 9, (3, 3, 3, 4, 0)),
        ([4, 5, 6], [4, 8], 9, (3, 2, 1, 2, 0)),
        ([4, 5, 6], [8], 9, (3, 1, 0, 1, 0)),
        ([4, 5, 6], [4, 5], 9, (3, 2, 2, 2, 0)),  # 5 ended the sequence
        ([4, 5, 6], [4, 5], 2, (3, 1, 1, 2, 2)),  # the last token is the target's own
        ([4, 5, 6], [4], 1, (3, 0, 0, 1, 3)),
        ([], [4], 9, (0, 0, 0, 1, 0)),
    ],
)
def test_a_round_is_counted_by_its_tokens(
    drafted: list[int], emitted: list[int], left: int, expected: tuple[int, ...]
) -> None:
    found = counted(drafted, emitted, left)
    assert (found.drafted, found.tested, found.accepted, found.emitted, found.surplus) == expected
    assert (len(found.overlap), sum(found.overlap)) == (found.tested, found.accepted)
