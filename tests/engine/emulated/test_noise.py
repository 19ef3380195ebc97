"""How costs vary: a level that wanders, alike over short times and forgotten over long ones, and single steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvbench.engine.emulated.noise import Variation
from kvbench.spec.emulation import Noise

Floats = npt.NDArray[np.float64]
LOOKS = 100_000


def levels(noise: Noise, at_s: Floats, seed: int = 3) -> Floats:
    """The log of the factor at these moments, around its mean."""
    variation = Variation(noise, seed)
    logs = np.log([variation.factor(moment_s) for moment_s in at_s.tolist()])
    return np.asarray(logs - logs.mean())


@pytest.mark.parametrize("noise", [Noise(), Noise(level=0.3, correlation=0.5)], ids=["default", "fast"])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0, 2.0])
def test_after_a_time_the_level_is_as_alike_as_an_ornstein_uhlenbeck_process(noise: Noise, share: float) -> None:
    """Given looks a part of the correlation time apart: over k of them the correlation is exp(-k dt / tau)."""
    apart_s = share * noise.correlation
    found = levels(noise, apart_s * np.arange(1, LOOKS + 1))
    for lag in (1, 2, 5, 10):
        alike = float(np.corrcoef(found[:-lag], found[lag:])[0, 1])
        # Bartlett's standard error of an AR(1) process; four of them.
        slack = 4 * np.sqrt((1 + np.exp(-2 * share)) / (1 - np.exp(-2 * share)) / LOOKS)
        assert alike == pytest.approx(np.exp(-lag * share), abs=slack), lag


def test_it_wanders_the_same_way_however_irregularly_it_is_looked_at() -> None:
    """What the time between does not explain is white, and as large as that time allows."""
    noise, rng = Noise(), np.random.default_rng(4)
    gaps_s = rng.exponential(2.0, LOOKS)
    found = levels(noise, np.cumsum(gaps_s))
    kept = np.exp(-gaps_s[1:] / noise.correlation)
    left = (found[1:] - kept * found[:-1]) / (noise.level * np.sqrt(1 - kept**2))
    assert left.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(left, found[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(left[:-1], left[1:])[0, 1]) < 0.02


def test_the_level_has_its_spread_and_factors_the_mean_one() -> None:
    noise = Noise(launch=0.0)
    variation = Variation(noise, 5)
    factors = np.array([variation.factor(at_s) for at_s in (3.0 * noise.correlation * np.arange(1, 20_001))])
    assert np.log(factors).std() == pytest.approx(noise.level, rel=0.03)
    assert factors.mean() == pytest.approx(1.0, abs=0.003)


def test_a_moment_has_one_level() -> None:
    variation = Variation(Noise(), 6)
    assert variation.factor(1.0) == variation.factor(1.0) != variation.factor(2.0)


def test_single_steps_have_nothing_to_do_with_each_other() -> None:
    variation = Variation(Noise(), 7)
    singles = np.log([variation.single() for _ in range(LOOKS)])
    assert singles.std() == pytest.approx(Noise().step, rel=0.03)
    assert abs(np.corrcoef(singles[:-1], singles[1:])[0, 1]) < 0.02


def test_over_a_round_the_level_averages_to_about_what_launches_differ_by() -> None:
    """The reasoning behind the defaults: over two minutes a level of 8 % that lasts five seconds leaves 2 %."""
    noise = Noise(launch=0.0)
    at_s = np.arange(1, 121, 0.5)
    means = [levels_of_round(noise, at_s, seed) for seed in range(300)]
    assert np.std(means) == pytest.approx(noise.level * np.sqrt(2 * noise.correlation / 120), rel=0.2)
    assert np.std(means) == pytest.approx(Noise().launch, rel=0.5)


def levels_of_round(noise: Noise, at_s: Floats, seed: int) -> float:
    variation = Variation(noise, seed)
    return float(np.mean(np.log([variation.factor(moment_s) for moment_s in at_s.tolist()])))
