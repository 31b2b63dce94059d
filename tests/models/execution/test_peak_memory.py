"""The memory of this process at its highest, since somebody asked."""

from pathlib import Path

import pytest
import torch

from specbench.models.execution.machine import kilobytes, set_back, watched
from specbench.results.machine import Peak, Peaks, peaks_of
from tests.support.toys import CPU

MEGABYTES = 1 << 20
told = pytest.mark.skipif(not set_back(Path("/")), reason="the system does not set the highest memory back")


@told
def test_what_is_taken_and_given_back_meanwhile_counts_and_what_was_before_does_not() -> None:
    earlier = torch.ones(96 * MEGABYTES, dtype=torch.uint8)
    del earlier
    with watched(CPU) as idle:
        device, before = idle()
    with watched(CPU) as peak:
        taken = torch.ones(64 * MEGABYTES, dtype=torch.uint8)
        del taken
        _, most = peak()
    assert device is None
    assert before is not None
    assert most is not None
    assert before + 48 * MEGABYTES < most < before + 90 * MEGABYTES


def test_where_the_system_does_not_set_it_back_it_is_unknown(tmp_path: Path) -> None:
    with watched(CPU, tmp_path) as peak:
        assert peak() == (None, None)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "status").write_text("VmHWM:\t  12 kB\n")
    assert kilobytes(tmp_path / "proc/self/status", "VmHWM") == 12 * 1024
    with watched(CPU, tmp_path) as peak:
        assert peak() == (None, 12 * 1024)
    assert (tmp_path / "proc" / "self" / "clear_refs").read_text() == "5"


def test_the_higher_of_two_is_the_known_one() -> None:
    assert Peak(None, 3).higher(Peak(2, 1)) == Peak(2, 3)
    found = Peaks(Peak(None, 1)).higher(Peaks(Peak(None, 2), Peak(5, None)))
    assert list(found.row().values()) == [None, 2, 5, None]
    assert peaks_of(found.line()) == found
    assert peaks_of({}) == Peaks()


@pytest.mark.parametrize("line", [{"method": ["5", 1]}, {"method": [-1, 1]}, {"other": [1, 1]}, {"method": [1, 1, 1]}])
def test_a_line_without_bytes_is_refused(line: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        peaks_of(line)  # type: ignore[arg-type]
