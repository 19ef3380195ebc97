"""Costs by source from requests that mix sources: known costs are found again, with intervals that hold them."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.plan.cost_mix import MixFit, Requests, fit_mix

COSTS = {"device": 2e-6, "host": 2e-5, "disk": 5e-5, "computed": 1.5e-4}
BASE_S, LOAD_S, READ_S = 0.03, 0.004, 0.01


def drawn(rounds: int = 4, n: int = 120, *, noise: float = 0.05, hiccups: float = 0.0, seed: int = 1) -> Requests:
    """Prompts of 256 to 4,096 tokens, each mostly from one source, with some computed at the end."""
    rng = np.random.default_rng(seed)
    total = rounds * n
    source = rng.integers(0, 4, total)
    prefix = 256.0 * rng.integers(1, 16, total)
    tokens = {name: np.where(source == place, prefix, 0.0) for place, name in enumerate(("device", "host", "disk"))}
    tokens["computed"] = np.where(source == 3, prefix, 0.0) + rng.integers(32, 96, total)
    seconds = BASE_S + sum(COSTS[name] * tokens[name] for name in COSTS)
    seconds = seconds + LOAD_S * ((tokens["host"] + tokens["disk"]) > 0) + READ_S * (tokens["disk"] > 0)
    groups = np.repeat(np.arange(rounds), n)
    seconds = seconds * np.exp(rng.normal(0, noise, total)) * np.exp(rng.normal(0, noise / 2, rounds))[groups]
    seconds = np.where(rng.uniform(size=total) < hiccups, seconds + 2.0, seconds)
    return Requests(tokens, seconds, groups, rng.uniform(size=total) < 0.5)


def fitted(requests: Requests) -> MixFit:
    fit = fit_mix(requests, confidence=0.95)
    assert fit is not None
    return fit


def test_costs_without_noise_are_found_exactly() -> None:
    fit = fitted(drawn(noise=0.0))
    for source, cost in COSTS.items():
        assert fit.per_token_s(source) == pytest.approx(cost, rel=1e-6)
    assert fit.fixed_s("host") == pytest.approx(LOAD_S, rel=1e-6)
    assert fit.fixed_s("disk") == pytest.approx(LOAD_S + READ_S, rel=1e-6)
    assert fit.break_even("host") == pytest.approx(LOAD_S / (COSTS["computed"] - COSTS["host"]), rel=1e-6)


def test_intervals_hold_the_true_cost_about_as_often_as_they_say() -> None:
    held = 0
    for seed in range(20):
        fit = fitted(drawn(seed=seed))
        interval = fit.interval(lambda line: line.per_token_s("computed"))
        assert interval is not None
        held += interval[0] <= COSTS["computed"] <= interval[1]
    assert held >= 16, f"{held} of 20 at 95 %"


def test_hiccups_of_the_machine_do_not_move_it() -> None:
    fit = fitted(drawn(hiccups=0.03))
    assert fit.per_token_s("computed") == pytest.approx(COSTS["computed"], rel=0.1)
    assert fit.per_token_s("host") == pytest.approx(COSTS["host"], rel=0.4)


def test_computing_instead_of_promoting_is_predicted() -> None:
    requests = drawn(noise=0.0)
    fit = fitted(requests)
    behind = requests.tokens["host"] + requests.tokens["disk"]
    expected = BASE_S + COSTS["device"] * requests.tokens["device"]
    expected = expected + COSTS["computed"] * (requests.tokens["computed"] + behind)
    assert fit.computed_instead(requests) == pytest.approx(expected, rel=1e-6)


def test_a_tier_slower_than_computing_never_breaks_even() -> None:
    requests = drawn(noise=0.0)
    slow = Requests(
        requests.tokens, requests.seconds + 3e-4 * requests.tokens["disk"], requests.groups, requests.of_candidate
    )
    assert fitted(slow).break_even("disk") == math.inf
    assert fitted(slow).interval(lambda line: line.break_even("disk")) is None


def test_what_no_request_has_is_not_known() -> None:
    requests = drawn()
    only = requests.only(requests.tokens["disk"] == 0)
    fit = fitted(only)
    assert fit.per_token_s("disk") is None
    assert fit.break_even("disk") is None
    assert fit.per_token_s("host") is not None


def test_one_round_has_costs_and_no_intervals() -> None:
    fit = fitted(drawn(rounds=1))
    assert fit.per_token_s("computed") == pytest.approx(COSTS["computed"], rel=0.1)
    assert fit.interval(lambda line: line.per_token_s("computed")) is None


def test_where_every_request_computes_the_same_nothing_is_known() -> None:
    requests = drawn()
    same = Requests(
        {**requests.tokens, "computed": np.full(len(requests.seconds), 64.0)},
        requests.seconds,
        requests.groups,
        requests.of_candidate,
    )
    assert fit_mix(same, confidence=0.95) is None


def test_fits_without_one_round_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of nine tenths of a million requests, ten times at once, would be gigabytes."""
    alive: list[weakref.ref[Requests]] = []
    most = 0
    sound = Requests.only

    def noted(requests: Requests, chosen: NDArray[np.bool_]) -> Requests:
        nonlocal most
        part = sound(requests, chosen)
        alive.append(weakref.ref(part))
        most = max(most, sum(one() is not None for one in alive))
        return part

    monkeypatch.setattr(Requests, "only", noted)
    fit = fitted(drawn(rounds=6))
    assert (len(fit.without), len(alive), most) == (6, 6, 1)
