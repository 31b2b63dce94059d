"""The rolling numbers of a group: the same as those of the final table, and readable on a narrow terminal."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from specbench.jobs import progress as panel
from specbench.jobs.progress import Rolling
from specbench.results.samples import Sample, alpha_of, speedup_of
from specbench.spec import RunSpec
from tests.support.measured import baseline_trace, sample

SAMPLES = [
    sample(f"p{n % 3}", accepted, repeat=n // 3)
    for n, accepted in enumerate([(4, 2, 0, 2), (1, 1), (3, 0, 4), (2, 2), (0,), (4, 4)])
]


SAMPLES[1] = sample("p1", (1, 1), baseline=baseline_trace(range(3)))  # sampled texts have lengths of their own


PROMPTS = [replace(one, prompt=f"p{n}") for n, one in enumerate(SAMPLES)]  # enough of them for an interval


def drawn(width: int, group: dict[RunSpec, Rolling]) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(panel.table(group))
    return screen.getvalue().splitlines()


def test_rolling_numbers_are_those_of_all_samples_so_far() -> None:
    for n in range(1, len(SAMPLES) + 1):
        rolling = Rolling.of(SAMPLES[:n])
        assert rolling.alpha == pytest.approx(alpha_of(SAMPLES[:n]).value, rel=1e-12)
        found, expected = rolling.speedup, speedup_of(SAMPLES[:n])
        assert (found.value, found.low, found.high) == pytest.approx(
            (expected.value, expected.low, expected.high), rel=1e-12, nan_ok=True
        )


def test_the_interval_shrinks_with_the_prompts() -> None:
    many = [sample(f"p{n}", (4, 2, 0) if n % 2 else (1, 1)) for n in range(40)]
    few, all_ = Rolling.of(many[:6]).speedup, Rolling.of(many).speedup
    assert all_.high - all_.low < (few.high - few.low) / 2


def test_the_line_of_a_cell() -> None:
    assert panel.live_line(Rolling.of([sample()])) == "α 0.50  100 → 154 tokens/s  1.54× …"
    assert panel.live_line(Rolling.of(SAMPLES)).startswith("α 0.50  100 → ")
    base = sample(method=baseline_trace(range(12)))
    assert panel.live_line(Rolling.of([base])).startswith("α –  100 → 100 tokens/s")
    assert (panel.rate(3.14159), panel.rate(1234.5), panel.rate(float("nan"))) == ("3.1", "1234", "–")


@pytest.mark.parametrize(
    ("slow", "shown"),
    [
        ([1.0] * 4, "1.54× …"),
        ([1.0] * 5, "1.54× 1.54–1.54"),
        ([1.0, 1.1] * 10, "1.47× 1.43–1.50"),
        ([1.0, 20.0] * 10, "0.15× …"),
    ],
)
def test_an_interval_over_few_or_scattered_prompts_stays_open(slow: list[float], shown: str) -> None:
    def scattered(n: int) -> Sample:
        made = sample(f"p{n}")
        return replace(made, method=replace(made.method, seconds=made.method.seconds * slow[n]))

    assert panel.speedup_text(Rolling.of(map(scattered, range(len(slow))))) == shown


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "code chain K=4"),
        ({"k": 12, "schedule": "auto"}, "code chain K≤12 auto"),
        ({"dataset": "jsonl:/a/b/c.jsonl"}, "c.jsonl chain K=4"),
        ({"dataset": "a\x1b[31m\nb"}, "a\ufffd[31m\ufffdb chain K=4"),
    ],
)
def test_a_cell_has_a_name(changes: dict[str, str], name: str) -> None:
    assert panel.name_of(RunSpec(**changes)) == name  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits(width: int) -> None:
    group = {RunSpec(k=k): Rolling.of(PROMPTS) for k in (1, 2, 16)} | {RunSpec(k=3): Rolling()}
    title, *rows = drawn(width, group)
    assert title.split() == ["n", "α", "tokens/s", "speedup"]
    assert [row.split()[:3] for row in rows] == [
        ["chain", f"K={k}", str(n)] for k, n in ((1, 6), (2, 6), (16, 6), (3, 0))
    ]
    assert all("×" in row and "–" in row for row in rows[:3])
    assert rows[3].split()[3:] == ["–", "–", "warming", "up"]


def test_a_long_name_is_folded_and_the_numbers_are_not() -> None:
    spec = RunSpec(method="[/]/a/very/long/path/of/a/method/file.yaml")
    (_, first, *more) = drawn(60, {spec: Rolling.of(PROMPTS)})
    names, numbers = first[: first.index("6  0.50")], first[first.index("6  0.50") :]
    assert "".join([names, *more]).replace(" ", "") == panel.arm_of(spec).replace(" ", "")
    assert re.fullmatch(r"6  0\.50  100 → 158  1\.58× \d\.\d\d–\d\.\d\d", numbers.rstrip())
