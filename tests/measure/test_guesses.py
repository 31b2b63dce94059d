"""What a trace says of the draft's guesses, against plain forwards of the draft without a cache."""

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.measure.tracing import trace
from specbench.models.network.causal import Causal
from specbench.models.network.law import Law
from tests.support.tiny import CPU, network, plain_rows

V, K, NEW = 32, 3, 20


class Numbers:
    """A tokenizer whose tokens are numbers."""

    def decode(self, ids: list[int], **options: bool) -> str:
        return " ".join(map(str, ids))

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)


def test_the_guess_is_the_place_of_the_token_among_the_drafts_and_asking_changes_nothing() -> None:
    for law in (Law(0), Law(1.0)):
        target, draft = (Causal(network("llama", V, seed), law, V) for seed in (0, 1))
        method, known = Speculate(ModelDrafter(draft, K), target, Rejection()), [1, 2, 3]
        to = {"new": NEW, "eos": [], "device": CPU, "tokenizer": Numbers()}
        asked = trace(method, known, rng=seeded([0], CPU), drafting=draft.twin(), **to)  # type: ignore[arg-type]
        plain = trace(method, known, rng=seeded([0], CPU), **to)  # type: ignore[arg-type]
        assert [one.tokens for one in asked] == [one.tokens for one in plain]
        assert {one.guess for one in plain} == {None}
        for done in asked:
            drafted = [t for t in done.tokens if t.kind in ("accepted", "rejected", "unused")]
            known += [t.id for t in drafted if t.emitted]
            row = plain_rows(network("llama", V, 1), Law(1.0), V, [known])[0, -1]
            drawn = [t.id for t in done.tokens if t.kind in ("correction", "bonus")]
            rejected = [t.id for t in drafted if t.kind == "rejected"]
            better = [i for i in range(V) if drawn and row[i] > row[drawn[0]] and i not in rejected]
            assert not drawn or done.guess == len(better)
            known += drawn
        assert len({one.guess for one in asked}) > 2, "no variety: the test could not fail"
