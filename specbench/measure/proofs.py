"""The checks of a pair itself and of every method that decodes with it. Data in, checks out.

Two parties: a backend that emits text (only its `prepare` is used), and a judge that rescores it, the
networks of the same target in this process.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from specbench import metrics
from specbench.backends.base import Decode, Networks, Scores
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import needs, read_method
from specbench.decoding.methods import build
from specbench.decoding.proofs.exact import CPU, EXACT, control_error, prove, replay_outcomes
from specbench.decoding.randomness import Source
from specbench.decoding.verifiers.rejection import Rejection
from specbench.measure.group import seed_of
from specbench.measure.lossless import (
    Floor,
    PlainPass,
    Rescore,
    Text,
    agreement,
    generated,
    near_ties,
    noise_floor,
    shortfalls,
    tallies,
)
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.results.documents import (
    ACCEPTED,
    ALPHA,
    CACHED,
    CONTROL,
    FLOOR,
    GREEDY,
    LEANING,
    PROOF,
    RESCORED,
    SURPRISE,
    Check,
    Outcome,
)
from specbench.results.statistics import Tally, all_together
from specbench.spec import BASELINE, RunSpec

MOST = 100  # repetitions of all prompts to get enough tokens: some pairs end every text at once

Tallies = dict[str, Tally]  # by check name
SEEN = 1e-3  # a broken method has a far larger error than rounding

Watch = Callable[[str], None]  # called with the name of each starting step
# Chains with rollback, and a one-level tree: larger trees, whose nodes are gathered, have too many outcomes.
METHODS = ("chain", "block", "tree-distinct")
VOCAB, K, NEW, EOS = 3, 1, 3, (2,)
PROMPT = (0, 1)
Sequences = dict[tuple[int, ...], float]  # the probability of each
FLOAT32 = 1e-6  # tolerance for the sum of a float32 row, against 1


@dataclass(frozen=True)
class Judge:
    """The judge of texts: the networks in this process, transformers' outputs for the prompts, the noise of scores."""

    networks: Networks
    score: Rescore
    references: Sequence[Text]
    floor: Floor
    known: dict[Text, float] = field(default_factory=dict)  # most methods emit equal greedy texts

    def shortfall(self, text: Text) -> float:
        """How far the worst token of a text is below the best score at its position."""
        if text not in self.known:
            self.known[text] = float(shortfalls(text, self.score).max()) if text.tokens else 0.0
        return self.known[text]


def judge_of(networks: Networks, scores: Scores, greedy: RunSpec, prompts: Sequence[Prompt]) -> Judge:
    """Decode the prompts greedily with transformers alone, and measure the noise along the output."""
    network, device, eos = networks.network("target"), networks.device, networks.eos(greedy)
    score = PlainPass(network, device)
    with networks.gradless():
        references = [generated(network, prompt.ids, greedy.max_new_tokens, eos, device) for prompt in prompts]
        return Judge(networks, score, references, noise_floor(scores, score, references, greedy.k + 1))


def control_checks(judge: Judge, greedy: RunSpec, sampled: RunSpec, prompts: Sequence[Prompt]) -> list[Check]:
    """The noise of the pair, and the target as its own draft: greedy, and at a temperature."""
    floor = judge.floor
    seen = Check(FLOOR, "ok", found=floor.noise, detail=f"largest |Δ logit| at {floor.positions} places")
    control = self_speculation(judge.networks, sampled, prompts)
    # logits within 2ε differ by a TV distance of at most tanh ε, doubled here
    missing, limit = 1 - control.alpha, math.tanh(judge.floor.noise / sampled.temperature) + FLOAT32
    detail = f"missing to 1, over {control.tested} drafts"
    return [
        seen,
        accepted_check(judge, greedy, prompts),
        Check(ALPHA, "ok" if missing <= limit else "FAILED", found=missing, limit=limit, detail=detail),
    ]


def accepted_check(judge: Judge, greedy: RunSpec, prompts: Sequence[Prompt]) -> Check:
    """Greedy self-drafting: rejections occur only where rounding decides the best token."""
    control = self_speculation(judge.networks, greedy, prompts)
    ties = near_ties(control.texts, judge.score, judge.floor.limit)
    outcome: Outcome = "ok" if not control.rejected else "numeric" if control.rejected <= ties else "FAILED"
    detail = f"of {control.tested} drafts rejected; {ties} places where two tokens tie"
    return Check(ACCEPTED, outcome, found=control.rejected, limit=ties, detail=detail)


def greedy_checks(judge: Judge, greedy: RunSpec, decode: Decode, prompts: Sequence[Prompt]) -> list[Check]:
    """Compare a method's greedy output with `generate`, and rescore every token."""
    texts, limit = texts_of(decode, greedy, prompts, "greedy"), judge.floor.limit
    same = agreement(texts, judge.references, judge.score)
    outcome: Outcome = "ok" if same.gap is None else "numeric" if same.gap <= limit else "FAILED"
    detail = f"{same.identical} of {same.compared} texts identical"
    found = [Check(GREEDY, outcome, greedy.method, same.gap, limit, detail)]
    worst, tokens = max(map(judge.shortfall, texts)), sum(len(text.tokens) for text in texts)
    outcome, detail = "ok" if worst <= limit else "FAILED", f"below the best, the worst of {tokens}"
    found.append(Check(RESCORED, outcome, greedy.method, worst, limit, detail))
    # a lossy method's check need not pass
    return [check if read_method(check.method)["lossless"] else replace(check, outcome="lossy") for check in found]


def sampled_tallies(judge: Judge, spec: RunSpec, decode: Decode, prompts: Sequence[Prompt], least: int) -> Tallies:
    """Surprise, and leaning to a draft network, of `least` or more sampled tokens; fewer if every text ends at once."""
    drafts = sorted((needs(spec.method) - {"target"}) & {*judge.networks.plain})
    rival = PlainPass(judge.networks.network(drafts[0]), judge.networks.device) if drafts else None
    texts = texts_of(decode, spec, prompts, "sampled", least)
    with judge.networks.gradless():
        found = list(tallies(texts, judge.score, spec.temperature, rival))
    leant = [leaning for _, leaning in found if leaning is not None]
    return {SURPRISE: all_together(one for one, _ in found), **({LEANING: all_together(leant)} if leant else {})}


def texts_of(decode: Decode, spec: RunSpec, prompts: Sequence[Prompt], kind: str, least: int = 0) -> list[Text]:
    """Decode every prompt once; with `least`, repeatedly with other seeds until there are enough tokens."""
    found, tokens = list[Text](), 0
    size = 1 if spec.batch == 1 else max(spec.batch, -(-least // spec.max_new_tokens))
    for turn in turns(prompts, size, MOST if least else 1):
        seeds = [seed_of(spec, prompt.id, repeat, f"{kind} {spec.method}") for repeat, prompt in turn]
        traces = decode([prompt.ids for _, prompt in turn], seeds)
        found += [Text(tuple(prompt.ids), trace.tokens) for (_, prompt), trace in zip(turn, traces, strict=True)]
        tokens += sum(len(trace.tokens) for trace in traces)
        if tokens >= least > 0:
            break
    return found


def turns(prompts: Sequence[Prompt], size: int, repeats: int) -> Iterator[tuple[tuple[int, Prompt], ...]]:
    """Prompts with their repetition number, grouped so that the rows of a batch stay filled."""
    every = ((repeat, prompt) for repeat in range(repeats) for prompt in prompts)
    while turn := tuple(islice(every, size)):
        yield turn


def proof_checks(methods: Sequence[str], watch: Watch) -> list[Check]:
    """All proofs. UsageError if a method file is invalid."""
    watch("a method that is broken on purpose")
    error = control_error()
    found = [Check(CONTROL, "ok" if error > SEEN else "FAILED", found=error, limit=SEEN, detail="must be seen: above")]
    for name in methods:
        watch(f"proof of {name}")
        found.append(method_check(name))
    for name in METHODS:
        if name in methods:
            watch(f"proof of {name} with a cache")
            off = network_error(name)
            found.append(Check(CACHED, decided(off, lossless=True), name, off, EXACT, "largest error of a probability"))
    return found


def method_check(name: str) -> Check:
    """Compare the joint distribution of a method's output with the target's."""
    proof, lossless = prove(name), bool(read_method(name)["lossless"])
    if not proof.sizes:
        return Check(PROOF, "not checked", name, detail="a round of it has too many outcomes to enumerate")
    detail = f"largest error of a probability, {proof.sizes} sizes"
    return Check(PROOF, decided(proof.error, lossless), name, proof.error, EXACT if lossless else None, detail)


def decided(error: float, lossless: bool) -> Outcome:
    """The outcome of a check; a lossy method is not required to be exact."""
    return ("ok" if error <= EXACT else "FAILED") if lossless else "lossy"


@cache
def network(seed: int) -> Any:
    """A random network far from uniform, with float64 norms: transformers' RMS norms would hide errors below 1e-7."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    config = GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64, rope_parameters=rope, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    made = GPTNeoXForCausalLM(config).double().requires_grad_(False).train(False)
    rng = torch.Generator().manual_seed(seed)
    for weight in made.parameters():
        noise = 0.4 * torch.randn(weight.shape, generator=rng, dtype=torch.float64)
        weight.data = noise if weight.ndim > 1 else weight.data + noise
    return made


def network_error(name: str) -> float:
    """The worst error in probability of any sequence that the method can emit after the prompt."""
    models = {"target": Causal(network(0), Sampling(), VOCAB), "draft": Causal(network(1), Sampling(), VOCAB)}
    return difference(emitted(build(name, models, K)), expected(network(0)))


def emitted(method: Speculate) -> Sequences:
    """The output distribution of `decode`, enumerated over every combination of outcomes of its draws."""

    def run(source: Source) -> tuple[int, ...]:
        (trace,) = decode(method, [PROMPT], new=NEW, eos=EOS, rng=source, device=CPU)
        return trace.tokens

    found: Sequences = {}
    for tokens, weight in replay_outcomes(run):
        found[tokens] = found.get(tokens, 0.0) + weight
    return found


def expected(target: Any, tokens: Sequence[int] = (), weight: float = 1.0) -> Sequences:
    """The distribution of the target itself, one plain forward pass per prefix."""
    if len(tokens) == NEW or (tokens and tokens[-1] in EOS):
        return {tuple(tokens): weight}
    ids = torch.tensor([[*PROMPT, *tokens]])
    row = target(input_ids=ids, use_cache=False).logits[0, -1].softmax(-1).tolist()
    return {
        sequence: chance
        for token, share in enumerate(row)
        for sequence, chance in expected(target, [*tokens, token], weight * share).items()
    }


def difference(found: Sequences, right: Sequences) -> float:
    """The worst difference of any probability."""
    return max(abs(found.get(tokens, 0.0) - right.get(tokens, 0.0)) for tokens in {*found, *right})


@dataclass(frozen=True)
class Control:
    """Tested and rejected drafts, their mean acceptance probability α, and the emitted tokens."""

    tested: int
    rejected: int
    alpha: float
    texts: tuple[Text, ...]


def self_speculation(networks: Networks, spec: RunSpec, prompts: Sequence[Prompt]) -> Control:
    """Chains of K tokens that the target drafts for itself, at the temperature of the spec."""
    traces = [control_trace(networks, spec, prompt) for prompt in prompts]
    found = metrics.acceptance([counts for trace in traces for counts in trace.rounds])
    texts = tuple(Text(prompt.ids, trace.tokens) for prompt, trace in zip(prompts, traces, strict=True))
    return Control(found.tested, found.tested - found.accepted, found.alpha, texts)


def control_trace(networks: Networks, spec: RunSpec, prompt: Prompt) -> metrics.Trace:
    target: Any = networks.models(spec.with_(method=BASELINE))["target"]
    method = Speculate(ModelDrafter(target.twin(), spec.k), target, Rejection())
    rng = networks.source(spec, [seed_of(spec, prompt.id, 0, "self-speculation")])
    to: Any = {"new": spec.max_new_tokens, "eos": networks.eos(spec), "device": networks.device}
    with networks.gradless():
        (trace,) = decode(method, [prompt.ids], rng=rng, **to)
    return trace
