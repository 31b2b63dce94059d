"""The shapes of Llama models that a checkpoint can be grown to, by name: configs/shapes.yaml. No torch is needed."""

import re
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from specbench.errors import UnusableModelError
from specbench.files import CONFIGS, read_checked
from specbench.wording import near

FILE = CONFIGS / "shapes.yaml"
DEPTH = ":"  # separates a shape from another number of layers


class Shape(BaseModel):
    """Sizes of a Llama model, named as in config.json; `draft` is the shape of its usual draft."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    vocab_size: int = Field(ge=1)
    rope_theta: float = Field(default=10000.0, gt=0)
    rms_norm_eps: float = Field(default=1e-6, ge=0)
    tie_word_embeddings: bool = False
    max_position_embeddings: int = Field(default=2048, ge=1)
    draft: str | None = None
    note: str = ""

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def parameters(self) -> int:
        """The number of weights of a model of this shape; those of a tied head count once."""
        attention = 2 * self.head_dim * (self.num_attention_heads + self.num_key_value_heads) * self.hidden_size
        layer = attention + (3 * self.intermediate_size + 2) * self.hidden_size
        heads = 1 if self.tie_word_embeddings else 2
        return self.num_hidden_layers * layer + (heads * self.vocab_size + 1) * self.hidden_size

    def of_depth(self, layers: int) -> "Shape":
        """The shape with another number of layers, and a name that says so."""
        name = f"{self.name.partition(DEPTH)[0]}{DEPTH}{layers}"
        return self.model_copy(update={"num_hidden_layers": layers, "name": name})


def checked_shapes(content: Any) -> dict[str, Shape]:
    """The shapes in a table, by name. ValueError for an invalid one."""
    if not isinstance(content, dict) or not all(isinstance(sizes, dict) for sizes in content.values()):
        raise ValueError("expected a name and sizes for every shape")
    found = {str(name): Shape(**{**sizes, "name": str(name)}) for name, sizes in content.items()}
    if unknown := sorted({shape.draft for shape in found.values() if shape.draft} - set(found)):
        raise ValueError(f"no such shape for a draft: {', '.join(unknown)}")
    return found


@cache
def shapes() -> dict[str, Shape]:
    """The shapes that ship with specbench, by name."""
    return read_checked(FILE, checked_shapes)


def find(name: str) -> Shape:
    """The shape called `name`; `llama-7b:4` is llama-7b with four layers. UnusableModelError lists all."""
    base, _, layers = name.partition(DEPTH)
    if base not in shapes() or (DEPTH in name and not re.fullmatch("[1-9][0-9]{0,2}", layers)):
        raise UnusableModelError(
            f"unknown shape {name!r}{near(base, shapes())}: choose one of {', '.join(shapes())}, or another depth of "
            f"one, such as llama-7b{DEPTH}4"
        )
    return shapes()[base].of_depth(int(layers)) if layers else shapes()[base]
