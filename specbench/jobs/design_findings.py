"""What a design found, in plain sentences: depth, the fits, the optimum, the deep draft, and what to train on.

Knows what was found; must not know how, or where sentences are printed.
"""

from specbench.jobs.design_rows import Found
from specbench.jobs.design_shapes import short
from specbench.jobs.design_training import PROMISING
from specbench.theory import design
from specbench.wording import counted, finite_or_none, grouped, interval_text

NEAR = 0.05  # within this share of their optimum the fits agree with what was measured, as the optimum is flat


def findings(found: Found) -> list[str]:
    """What there is to say, one sentence each: depth, the fits, the optimum, the deep draft, and what to train on."""
    return [
        *target_lines(found),
        *depth_lines(found),
        *fit_lines(found),
        *optimum_lines(found),
        *deep_lines(found),
        *best_lines(found),
    ]


def target_lines(found: Found) -> list[str]:
    """What all shapes are measured by."""
    times = found.speed.latencies
    passes = ", ".join(f"{v:.2f}× at K {k}" for k, v in times.v.items())
    step = f"{1000 * times.step.value:.3g} ms [{1000 * times.step.low:.3g}, {1000 * times.step.high:.3g}]"
    return [f"a step of the target takes {step}; its pass over K + 1 tokens, in passes over one (v): {passes}"]


def depth_lines(found: Found) -> list[str]:
    """Whether the latency rises with depth at equal parameters, for every budget that has several depths."""
    lines = []
    for some in grouped(found.candidates, lambda one: one.budget):
        if len(some) < 2:
            continue
        ordered = sorted(some, key=lambda one: one.shape.layers)
        times = [found.speed.latencies.drafts[one.name].token for one in ordered]
        depths = ", ".join(str(one.shape.layers) for one in ordered)
        shown = ", ".join(f"{1000 * t.value:.3g} [{1000 * t.low:.3g}, {1000 * t.high:.3g}]" for t in times)
        said = {
            "rises": "the latency rises with depth",
            "level within the spread": "the latency does not fall with depth beyond its spread",
            "does not rise": "the latency does NOT rise with depth",
        }[design.rising(times)]
        lines.append(f"{short(some[0].budget)} parameters: {said}: {shown} ms per token at {depths} layers (quartiles)")
    return lines


def fit_lines(found: Found) -> list[str]:
    lines = []
    if (time := found.latency_fit) is not None:
        lines.append(
            f"latency ≈ {1000 * time.fixed:.3g} ms + {1000 * time.per_layer:.3g} ms per layer + "
            f"{1e9 * time.per_parameter:.3g} ms per million parameters; error {time.residual:.1%} (root mean square), "
            f"at most {time.worst:.1%}, over {counted(time.points, 'shape')}"
        )
    if (gain := found.acceptance_fit) is not None:
        lines.append(
            f"logit α ≈ {gain.constant:.3g} {gain.by_parameters:+.3g} ln parameters {gain.by_layers:+.3g} ln layers "
            f"{gain.by_tokens:+.3g} ln tokens; error of α {gain.residual:.3f} over "
            f"{counted(gain.points, 'trained draft')}"
        )
    return lines


def optimum_lines(found: Found) -> list[str]:
    """The optimum by the fits beside the measured one, whether they agree or not."""
    one, best = found.optimum, found.best
    if one is None or best is None:
        return ["too few shapes were timed or trained for fits, and so for an optimum by the formula"]
    same = found.by_fits(best["layers"], found.sizes[best["name"]])
    assert same is not None
    agree = same.choice.speedup >= (1 - NEAR) * one.choice.speedup
    return [
        f"best by the fits and the formula: {counted(one.layers, 'layer')} and {short(round(one.parameters))} "
        f"parameters, {one.choice.speedup:.2f}× at K {one.choice.k}; best "
        f"{'measured' if best['status'] == 'ok' else 'predicted, nothing being measured,'}: {best['name']}, for which "
        f"they say {same.choice.speedup:.2f}×: {'they agree' if agree else 'they DISAGREE'}"
    ]


def deep_lines(found: Found) -> list[str]:
    """The best shape beside the deepest of its budget, in measured tokens per second."""
    best = found.best
    if best is None or best["status"] != "ok":
        return []
    others = [row for row in found.rows if row["budget"] == best["budget"] and row["status"] == "ok"]
    deep = max(others, key=lambda row: int(row["layers"]))
    if deep is best:
        return [f"{best['name']} is the deepest of its budget that was measured"] if len(others) > 1 else []
    gain = found.gain(best["name"], deep["name"])
    return [
        f"{best['name']} decodes {best['tokens_per_second']:.1f} tokens/s, {gain.value:.2f}× "
        f"{interval_text(finite_or_none(gain.low), finite_or_none(gain.high))} those of {deep['name']}, the deepest of "
        f"its budget that was trained as long ({deep['tokens_per_second']:.1f} tokens/s)"
    ]


def best_lines(found: Found) -> list[str]:
    """What to train on, and whether it pays."""
    best = found.best
    if best is None:
        return ["no shape was trained"]
    if not any(found.speed.promising(one.name) for one in found.candidates):
        return [f"no shape pays below α = {PROMISING} here; the best of them is {best['name']}"]
    measured = best["status"] == "ok"
    value, word = (best["speedup"], "measured") if measured else (best["speedup_predicted"], "predicted")
    pays = "" if value > 1 else ", which does not pay yet"
    return [f"train on {best['name']}: {value:.2f}× {word} at K {best['k']}{pays}"]
