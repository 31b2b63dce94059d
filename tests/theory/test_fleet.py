"""A fleet under load: what queueing theory says where it says something, and what cannot be otherwise."""

import math

import pytest

from specbench.theory.fleet import Engine, Load, percentiles, simulate

ONE = (1.0,)  # one token a step


def test_one_user_waits_for_nobody_and_full_slots_give_what_a_step_of_them_gives() -> None:
    engine = Engine(((1, 0.1), (4, 0.2)), ONE, prefill=0.5, slots=4)
    served = simulate(engine, Load(20, [7], users=1))
    assert served.latency == pytest.approx((0.5 + 7 * 0.1,) * 3)
    assert served.first_token == pytest.approx((0.6,) * 3)
    assert served.per_token == pytest.approx((0.1,) * 3)
    assert served.tokens_per_second == pytest.approx(7 / 1.2)
    assert (served.busy, served.rows) == pytest.approx((1.0, 1.0))
    engine = Engine(((1, 0.1), (4, 0.25)), (0.0, 1.0), prefill=0.0, slots=4)
    served = simulate(engine, Load(400, [10], users=4))
    assert served.tokens_per_second == pytest.approx(4 * 2 / 0.25)
    assert served.requests_per_second == pytest.approx(engine.capacity(10))
    assert served.rows == pytest.approx(4)


def test_between_two_measured_batches_a_step_lies_on_the_line() -> None:
    engine = Engine(((2, 0.2), (4, 0.3), (8, 0.9)), ONE, 0.0, 8)
    assert [engine.step(rows) for rows in (1, 2, 3, 4, 6, 8)] == pytest.approx([0.2, 0.2, 0.25, 0.3, 0.6, 0.9])


def test_one_slot_is_the_queue_of_pollaczek_and_khinchine() -> None:
    """Mean wait λ E[S²] / (2 (1 − ρ)); by Little's law and the mean of the latency of many requests."""
    engine = Engine(((1, 1.0),), ONE, prefill=0.5, slots=1)
    lengths, rate = [1, 1, 4], 0.25
    services = [0.5 + length for length in lengths]
    mean, square = (math.fsum(s**power for s in services) / len(services) for power in (1, 2))
    expected = mean + rate * square / (2 * (1 - rate * mean))
    found = [simulate(engine, Load(4000, lengths, rate, seed=seed)) for seed in range(6)]
    assert math.fsum(one.busy for one in found) / 6 == pytest.approx(rate * mean, rel=0.03)
    waits = [latencies(engine, Load(4000, lengths, rate, seed=seed)) for seed in range(6)]
    assert math.fsum(waits) / 6 == pytest.approx(expected, rel=0.05)


def latencies(engine: Engine, load: Load) -> float:
    """The mean latency, by a recursion that knows no events: Lindley's, with the same arrivals."""
    import random

    draws = random.Random(load.seed)
    lengths = [draws.choice(load.lengths) for _ in range(load.requests)]
    free, now, waited = 0.0, 0.0, []
    for length in lengths:
        now += draws.expovariate(load.rate or 1)
        free = max(now, free) + engine.prefill + length * engine.step(1)
        waited.append(free - now)
    served = simulate(engine, load)
    assert served.latency == pytest.approx(percentiles(waited[load.requests // 10 :]))
    return math.fsum(waited) / len(waited)


def test_an_open_load_beyond_the_capacity_is_served_at_the_capacity() -> None:
    engine = Engine(((1, 0.1), (4, 0.2)), (0.5, 0.5), prefill=0.05, slots=4)
    served = simulate(engine, Load(600, [12, 20], rate=50.0))
    assert served.busy == pytest.approx(1.0, abs=0.01)
    assert served.requests_per_second == pytest.approx(engine.capacity(16), rel=0.1)  # a row ends within a step
    assert served.latency[1] > 5 * served.latency[0] / 3


def test_two_devices_share_the_requests_and_the_same_seed_gives_the_same_figures() -> None:
    engine = Engine(((1, 0.1), (8, 0.3)), ONE, prefill=0.02, slots=8)
    one, two = (simulate(engine, Load(600, [10, 30], users=16, seed=1), devices) for devices in (1, 2))
    assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second, rel=0.05)
    assert two.latency[0] < one.latency[0]
    engine = Engine(((1, 0.1), (8, 0.3)), (0.3, 0.3, 0.4), prefill=0.02, slots=8)
    load = Load(200, [10, 30], rate=2.0, seed=5)
    assert simulate(engine, load) == simulate(engine, load)


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles([float(number) for number in range(1, 101)]) == (50.0, 95.0, 99.0)
    assert percentiles([3.0]) == (3.0, 3.0, 3.0)
    assert percentiles([]) == ()
