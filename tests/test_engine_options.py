"""Options that go to an engine as they are: how they are written, and what is refused."""

import pytest
from pydantic import ValidationError

from specbench.settings import engine_options, engines, of_engine, written_options
from specbench.spec import RunSpec

GIVEN = ("vllm.tensor_parallel_size=2", "llama.cpp.flash-attn=off", "vllm.enforce_eager=true")


def test_options_belong_to_their_engine() -> None:
    found = engine_options(GIVEN)
    assert engine_options(written_options(found)) == found == engine_options(dict(found))
    assert of_engine(found, "vllm") == {"tensor_parallel_size": 2, "enforce_eager": True}
    assert of_engine(found, "llama.cpp") == {"flash-attn": "off"}
    assert engines(found) == ["llama.cpp", "vllm"]


def test_they_are_part_of_a_cell_and_of_its_json() -> None:
    spec = RunSpec(engine_option=GIVEN)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.key != RunSpec().key == RunSpec(engine_option=()).key


@pytest.mark.parametrize("given", ["tensor_parallel_size=2", "vllm.x", 7, ["vllm.x=1", "vllm.x=2"]])
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(ValidationError, match=r"ENGINE\.NAME=VALUE|has two values"):
        RunSpec.model_validate({"engine_option": given})
