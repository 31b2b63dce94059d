"""What is read around a decode: files of the system, and a GPU that is made up; and that a run goes on without them."""

import os
from pathlib import Path

import pytest
import torch

from specbench.measure import sensors
from specbench.measure.runner import measure
from specbench.measure.sensors import NO_SENSORS, Sensors, Times, sensors_for
from specbench.results import machine
from specbench.results.cells import Cell
from specbench.results.machine import UNREAD, Reading, gpu_named
from specbench.show.run_output import notes
from tests.support.fake_nvml import UUID, FakeNvml, dumb
from tests.support.measured import FakeBackend, Witness, job

STAT = "cpu  400 30 200 9000 70 5 15 50 20 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
OWN = "17 (a (strange) name) R " + " ".join(map(str, range(4, 39))) + " 1 0 0\n"  # field 39 is 1
INFO = "".join(
    f"processor\t: {n}\nflags\t: x\ncpu MHz\t\t: {mhz}\nflags\t: fpu\n\n" for n, mhz in ((0, 1000.5), (1, 2596.098))
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of a virtual machine on which nothing tells the frequency but /proc/cpuinfo."""
    (tmp_path / "proc/thread-self").mkdir(parents=True)
    (tmp_path / "proc/stat").write_text(STAT)
    (tmp_path / "proc/thread-self/stat").write_text(OWN)
    (tmp_path / "proc/cpuinfo").write_text(INFO)
    return tmp_path


# --- files of the system ----------------------------------------------------------------------------------------------


def test_processor_time_leaves_out_idle_time_and_guests(root: Path) -> None:
    assert sensors.times(root) == Times(wanted=400 + 30 + 200 + 5 + 15 + 50, stolen=50)


def test_the_clock_is_that_of_the_processor_that_worked(root: Path) -> None:
    assert sensors.clock(root) == 2596.098
    folder = root / "sys/devices/system/cpu/cpu1/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_cur_freq").write_text("3401000\n")
    assert sensors.clock(root) == 3401.0, "a file about the one processor goes before the list of all"


def test_a_long_list_of_processors_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    assert sensors.clock(root) is None


def test_a_reading_is_of_the_time_between(root: Path) -> None:
    watch = Sensors(root=root)
    before = watch.begin()
    (root / "proc/stat").write_text("cpu 490 30 200 9900 70 5 15 60 20 10\n")
    assert watch.end(before) == Reading(cpu_mhz=2596.098, cpu_wanted=1.0, cpu_stolen=0.1)
    (root / "proc/stat").write_text("cpu 495 30 200 9900 70 5 15 40 20 10\n")
    assert watch.end(before).cpu_stolen == 0.0, "after a move to another host it may count from less"


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e f g h", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9"])
def test_files_that_say_something_else_say_nothing(root: Path, text: str) -> None:
    for name in ("proc/stat", "proc/thread-self/stat", "proc/cpuinfo"):
        (root / name).write_text(text)
    watch = Sensors(root=root)
    assert watch.end(watch.begin()) == UNREAD


def test_a_system_without_such_files_says_nothing(tmp_path: Path) -> None:
    watch = Sensors(root=tmp_path)
    assert watch.end(watch.begin()) == UNREAD
    assert NO_SENSORS.end(NO_SENSORS.begin()) == UNREAD


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="the system has no /proc/stat")
def test_the_real_files_are_read() -> None:
    watch = sensors_for(torch.device("cpu"))
    before = watch.begin()
    for _ in range(3):
        torch.ones(400, 400) @ torch.ones(400, 400)
    found = watch.end(before)
    assert before is not None
    assert before.wanted > before.stolen >= 0
    assert found.cpu_wanted is not None
    assert found.cpu_stolen is not None
    assert found.cpu_wanted >= found.cpu_stolen >= 0
    assert (found.cpu_mhz is None or found.cpu_mhz > 10, found.gpu_mhz, watch.remark) == (True, None, "")


# --- a GPU ------------------------------------------------------------------------------------------------------------


def test_a_gpu_without_the_extra_is_one_remark_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    found = sensors_for(torch.device("cuda:0"))
    assert found.gpu is None
    assert found.remark == (
        "clocks, power and temperature of the GPU are not recorded: pip install 'specbench-decoding[gpu]'"
    )


@pytest.mark.parametrize(("known", "remark"), [(True, ""), (False, "NVML does not answer for it (try nvidia-smi)")])
def test_a_gpu_that_nvml_knows_is_read(monkeypatch: pytest.MonkeyPatch, known: bool, remark: str) -> None:
    gpu = gpu_named(UUID, FakeNvml()) if known else None
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(machine, "find_spec", lambda _: object())
    monkeypatch.setattr(sensors, "gpu_of", lambda device: gpu)
    found = sensors_for(torch.device("cuda:0"))
    assert found.gpu is gpu
    assert found.remark.endswith(remark)
    assert bool(found.remark) == bool(remark)


# --- a run ------------------------------------------------------------------------------------------------------------


def measured(fake: FakeNvml, prompts: int = 10, **changes: object) -> Cell:
    gpu = gpu_named(UUID, fake)
    assert gpu is not None
    fake.asked.clear()
    tasks = [job(*(f"p{n}" for n in range(prompts)), **changes)]
    (cell,), _ = measure(tasks, FakeBackend(), [Witness()], sensors=Sensors(gpu, root=None))
    return cell


def test_a_gpu_is_read_once_after_every_decode_that_counts() -> None:
    fake = FakeNvml(mhz=range(1000, 1100))
    cell = measured(fake, prompts=3, warmup=2)
    assert fake.asked.count("mhz") == 6
    by_place = [sorted(zip(s.order, [r.gpu_mhz for r in s.readings], strict=True)) for s in cell.samples]
    assert by_place == [[(0, 1000), (1, 1001)], [(0, 1002), (1, 1003)], [(0, 1004), (1, 1005)]]
    assert cell.sample_rows()[1]["gpu_watts"] == 412.3


def test_the_prompts_of_a_batch_share_a_reading() -> None:
    fake = FakeNvml(mhz=range(1000, 1100))
    cell = measured(fake, prompts=8, batch=2)
    turns = {s.turn for s in cell.samples}
    assert fake.asked.count("mhz") == 2 * len(turns) < 2 * len(cell.samples)
    assert len({s.readings for s in cell.samples}) == len(turns)


def test_a_gpu_that_slows_down_under_a_run_is_a_note() -> None:
    quiet = notes([measured(FakeNvml()).row()])
    assert not any("GPU" in note for note in quiet)
    falling = FakeNvml(mhz=[1980] * 8 + [1410], reasons=[0] * 8 + [0x20 | 0x1])
    found = [note for note in notes([measured(falling).row()]) if "GPU" in note]
    assert [note.partition(" (")[0] for note in found] == [
        "code: the clock of the GPU fell by 29% between decodes",
        "code: the GPU was throttled in 60% of the decodes",
    ]
    assert "(temperature)" in found[1]


def test_a_gpu_that_answers_nothing_ends_no_cell_and_warns_of_nothing() -> None:
    cell = measured(dumb())
    assert (cell.status, len(cell.samples)) == ("ok", 10)
    assert {s.readings for s in cell.samples} == {(UNREAD, UNREAD)}
    assert not any("GPU" in note for note in notes([cell.row()]))
