"""A part that does not declare what its protocol asks for is refused where it is built, and by the type checker."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from specbench.decoding.drafters.chain import NoDraft
from specbench.decoding.methods import DRAFTERS, PARTS, VERIFIERS, build
from specbench.decoding.protocols import Drafter, Verifier
from specbench.errors import UsageError
from tests.support.toys import Toy, random_pair

SAID_OF_DRAFTERS = ("static", "room", "depth", "branches", "drawn", "adapts", "carries")
SAID_OF_VERIFIERS = ("judges", "lossless")


class Judge:
    """A verifier that declares all there is to declare."""

    lossless: ClassVar[bool] = True
    judges: ClassVar[str] = "trees"

    def judge(self, *rest: Any) -> None:
        return


def without(part: type, name: str) -> type:
    """The class under another name, without one of its declarations."""
    declared = {key: value for base in part.__mro__[-2::-1] for key, value in vars(base).items()}
    kept = {key: value for key, value in declared.items() if key not in (name, "__dict__", "__weakref__")}
    return type(f"Forgetful{part.__name__}", (), kept)


def built(folder: Path, **parts: str) -> Any:
    file, toy = folder / "mine.yaml", Toy(random_pair(0, 2, 2)[0])
    method = {"Speculate": {"drafter": "NoDraft", "model": "target", "verifier": "Rejection", **parts}}
    file.write_text(yaml.safe_dump({"summary": "s", "paper": "p", "lossless": True, "method": method}))
    return build(str(file), {"target": toy}, 2)


@pytest.mark.parametrize(
    ("kind", "part", "name"),
    [("drafter", NoDraft, name) for name in SAID_OF_DRAFTERS]
    + [("verifier", Judge, name) for name in SAID_OF_VERIFIERS],
)
def test_a_part_that_forgets_a_declaration_is_not_built(
    kind: str, part: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "Whole", part)
    assert isinstance(getattr(built(tmp_path, **{kind: "Whole"}), kind), part)
    monkeypatch.setitem(PARTS, "Mine", without(part, name))
    with pytest.raises(UsageError) as refusal:
        built(tmp_path, **{kind: "Mine"})
    said = f"method.Speculate.{kind}: Forgetful{part.__name__} does not declare {name}: a {kind} must declare it"
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_parts_that_ship_declare_it_on_the_class() -> None:
    """So that a method can be checked before a model is loaded, whatever stands in the places of models."""
    for kind, names, parts in ((Drafter, SAID_OF_DRAFTERS, DRAFTERS), (Verifier, SAID_OF_VERIFIERS, VERIFIERS)):
        assert {name for name, one in vars(kind).items() if isinstance(one, property)} == set(names)
        assert not [(part, name) for part in parts for name in names if not hasattr(part, name)]


SNIPPET = """
from typing import ClassVar
from specbench.decoding.drafters.chain import Memoryless
from specbench.decoding.randomness import Source
from specbench.decoding.protocols import Drafter
from specbench.decoding.types import Context, Draft

class Mine(Memoryless):
{declared}
    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return Draft.empty(context)

mine: Drafter = Mine()
"""
VALUES = {"static": "False", "room": "0", "depth": "0", "branches": "False", "drawn": "False", "adapts": '""',
         "carries": "None"}  # fmt: skip


@pytest.mark.slow
def test_a_drafter_that_forgets_a_declaration_does_not_type_check(tmp_path: Path) -> None:
    kinds = {
        name: "None" if value == "None" else type(ast.literal_eval(value)).__name__ for name, value in VALUES.items()
    }
    for forgotten in ("", *SAID_OF_DRAFTERS):
        given = [
            f"    {name}: ClassVar[{kinds[name]}] = {value}" for name, value in VALUES.items() if name != forgotten
        ]
        (tmp_path / f"mine_{forgotten or 'whole'}.py").write_text(SNIPPET.format(declared="\n".join(given)))
    files = sorted(map(str, tmp_path.glob("mine_*.py")))
    command = [sys.executable, "-m", "mypy", "--strict", *files]
    root = Path(__file__).parents[2]  # with the cache of the linters: cold, it takes twenty seconds
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    errors = {Path(line.split(":")[0]).stem for line in found.stdout.splitlines() if ": error: " in line}
    assert errors == {f"mine_{name}" for name in SAID_OF_DRAFTERS}, found.stdout + found.stderr
    for name in SAID_OF_DRAFTERS:
        notes = [line for line in found.stdout.splitlines() if f"mine_{name}.py" in line]
        assert any(line.endswith(f"     {name}") for line in notes), notes
