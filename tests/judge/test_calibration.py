"""What `make calibrate` counts, on banks whose noise is known: its arithmetic, not kvbench's error rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvbench.judge.looks import Look
from kvbench.judge.verdict import Outcome
from tests.proofs import calibrate, calibration_bank
from tests.proofs.calibration_bank import Bank, PlayedRound, fill
from tests.proofs.calibration_cells import EFFECTS, LAST, Judge, log_ratios, resolved, rules, share, values_of
from tests.proofs.calibration_check import differences, judged_in_full, pairs_again
from tests.proofs.calibration_field import bootstrap_differs, mann_whitney_differs
from tests.proofs.calibration_limits import (
    WHY_SAVINGS,
    Cell,
    Coverage,
    Covers,
    Drawn,
    broken,
    coverage,
    make_cell,
    unjudged,
)

MARGIN = 1.2
NOISE = 0.4 * np.log(MARGIN)
JUDGE = Judge(rules(MARGIN))


def drawn(comparisons: int = 300, noise: float = NOISE) -> Drawn:
    """From 480 rounds of an arm with itself whose log ratios are normal."""
    logs = np.random.default_rng(3).normal(0, noise, (480, 3))
    return Drawn("low", values_of(logs, comparisons, [1]), np.full(480, 60.0), np.full(3, noise))


def cell(name: str, the_drawn: Drawn | None = None) -> Cell:
    effect = next(effect for effect in EFFECTS if effect.name == name)
    return make_cell(the_drawn or drawn(), JUDGE, name, effect.logs(JUDGE), put_in=True)


def test_under_normal_noise_every_cell_holds_what_it_must() -> None:
    quiet = drawn(60)
    cells = [cell(effect.name, quiet) for effect in EFFECTS]
    assert broken(cells, list(coverage("low", JUDGE, quiet.values))) == []
    assert [one.noise for one in cells] == pytest.approx([0.4] * len(EFFECTS))


def test_at_the_margin_both_false_alarms_are_near_their_level() -> None:
    found = cell("one guardrail at its margin", drawn(comparisons=300))
    assert 0.0 < found.go.value <= 0.025 + 3 * 0.0090
    assert found.breach.value <= 0.0125 + 3 * 0.0064
    assert found.truth == pytest.approx((MARGIN, 1.0, 0.8**1.5))


def test_engine_minutes_are_those_of_the_rounds_until_the_stop() -> None:
    """Noise far below the margin: the third round decides, a quarter of twelve."""
    found = cell("one guardrail at 2 x margin", drawn(30, noise=1e-4))
    assert (found.minutes, found.minutes_full, found.saving) == (3.0, 12.0, 0.75)
    assert found.no_go.value == found.breach.value == 1.0


def test_a_judge_that_calls_everything_go_is_named() -> None:
    found = cell("one guardrail at its margin", drawn(40))
    fooled = replace(found, go=share([True] * 40, np.arange(40) % 10))
    assert broken([fooled], []) == [
        "low load, margin 1.2, one guardrail at its margin: false GO 100.00 ± 0.00 %, may be 2.50 %"
    ]
    assert broken([replace(fooled, noise=0.61)], []) == []


def test_a_calibration_in_which_a_load_or_an_effect_was_too_noisy_to_be_judged_has_not_been_passed() -> None:
    one, other = cell("unchanged", drawn(20)), cell("one guardrail at 2 x margin", drawn(20))
    best = replace(cell("benefit at 1.5 x threshold", drawn(20, noise=0.2 * NOISE)), load="high")
    assert unjudged([one, other, best]) == []
    noisy = replace(one, noise=0.7)
    assert unjudged([noisy, one, other, best]) == [], "another margin of the same load and effect was judged"
    assert unjudged([noisy, other, best]) == [
        "low load, unchanged: not judged at any margin, s/L is 0.70 or more",
        "unchanged: what stopping early saves was not judged, no cell is quiet enough",
    ]
    everything = [replace(found, noise=0.7, deciding=0.7) for found in (one, other, best)]
    assert len(unjudged(everything)) == 6
    assert broken(everything, []) == []


def test_what_stopping_early_saves_of_a_go_is_judged_by_how_far_it_lies_from_its_threshold() -> None:
    far = cell("benefit at 1.5 x threshold", drawn(30, noise=0.2 * NOISE))
    assert far.go.value == 1
    assert far.deciding == pytest.approx(0.2 * NOISE / (0.5 * -np.log(0.8)))
    assert broken([far], []) == []
    (named,) = broken([replace(far, saving=0.3)], [])
    assert named.endswith("x threshold: stopping early saves 30 % of the engine-minutes, must be 50 %")
    assert cell("benefit at its threshold", drawn(10)).deciding == np.inf


def test_one_rule_whose_interval_covers_too_seldom_is_named_though_the_mean_of_all_is_right() -> None:
    right, low = share([True] * 95 + [False] * 5, np.arange(100)), share([True] * 88 + [False] * 12, np.arange(100))
    right, low = (replace(one, error=0.01) for one in (right, low))
    spoiled = Covers(right, (right, right, low))
    found = cell("unchanged", drawn(30))
    assert broken([], [Coverage("low", 6, Covers(right, (right,) * 3))]) == []
    assert broken([], [Coverage("low", 6, spoiled)]) == [
        "low load, 6 rounds: ci of rule 3 covers 88.00 ± 1.00 %, not 93 to 97 %"
    ]
    named = broken([replace(found, decision_covers=spoiled, ci_covers=spoiled)], [])
    assert [text.partition(": ")[2] for text in named] == [
        "coverage of decision_ci of rule 3 at the stop 88.00 ± 1.00 %, must be 93.00 %",
        "coverage of ci of rule 3 at the stop 88.00 ± 1.00 %, must be 90.00 %",
    ]


def test_an_interval_that_is_not_there_covers_nothing() -> None:
    values = drawn(10).values
    flat = replace(values, logs=np.zeros_like(values.logs))
    assert next(coverage("low", JUDGE, flat)).covers.together.value == 0


def test_a_go_on_what_the_engine_made_worse_is_named_where_a_benefit_was_put_in() -> None:
    found = cell("benefit at 1.5 x threshold", drawn(30, noise=1e-4))
    made = replace(found, effect="mechanism: slow, benefit", truth=(1.3, 1.1, 0.7))
    assert found.go.value == 1
    assert broken([made], []) == [
        "low load, margin 1.2, mechanism: slow, benefit: false GO 100.00 ± 0.00 %, may be 2.50 %"
    ]
    assert broken([replace(made, truth=(1.1, 1.1, 0.7))], []) == []
    assert broken([replace(made, truth=(1.1, 1.1, 0.9))], []) != []


def test_a_comparison_has_distinct_rounds_all_of_one_group() -> None:
    values = values_of(np.zeros((400, 3)), 200, [7])
    owner: dict[int, int] = {}
    for group, places in zip(values.groups.tolist(), values.places.tolist(), strict=True):
        assert len(set(places)) == LAST
        for place in places:
            assert owner.setdefault(place, group) == group
    again = values_of(np.zeros((400, 3)), 200, [7])
    assert (values.places == again.places).all()
    assert (values.swapped == again.swapped).all()


def test_the_standard_error_is_that_of_the_groups_where_rounds_are_reused() -> None:
    """Two groups that say the opposite are two pieces of evidence, not two thousand."""
    groups = np.arange(2000) % 2
    assert share(groups == 0, groups).error == pytest.approx(0.5)
    independent = share(np.random.default_rng(1).random(2000) < 0.2, groups)
    assert independent.error >= np.sqrt(independent.value * (1 - independent.value) / 2000)


def test_the_margin_resolved_shrinks_with_rounds_and_grows_with_noise() -> None:
    six, twelve = (resolved(JUDGE, drawn(100).values, Look(n, n, n))[0] for n in (6, 12))
    noisy = resolved(JUDGE, drawn(100, noise=2 * NOISE).values, Look(12, 12, 12))[0]
    assert 1 < twelve < six
    assert twelve < noisy
    # t at 2.5 % and 11 degrees of freedom, and the 90 % quantile of the mean, in standard errors
    assert np.log(twelve) == pytest.approx((2.2 + 1.28) * NOISE / np.sqrt(12), rel=0.15)


def test_rules_that_look_earlier_resolve_less_at_the_same_number_of_rounds() -> None:
    values = drawn(100).values
    for done, boundary in ((6, 4.6), (12, 2.6)):
        fixed, looking = (resolved(JUDGE, values, look)[0] for look in (Look(done, done, done), Look(done, 3, 12)))
        assert fixed < looking
        assert np.log(looking) == pytest.approx((boundary + 1.28) * NOISE / np.sqrt(done), rel=0.15)


def test_what_is_printed_tells_fixed_rounds_from_looks_and_where_savings_are_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a benefit that lies far enough from its threshold, the same one too near, and an unchanged arm."""
    far = cell("benefit at 1.5 x threshold", drawn(20, noise=0.2 * NOISE))
    cells = [far, replace(far, deciding=0.41), cell("unchanged", drawn(20)), cell("benefit at its threshold")]
    margins = {look: [1.1 + 0.01 * place] * 3 for place, look in enumerate(calibrate.RESOLVED_AT)}
    load = calibrate.Load(drawn(20), cells, [], [], margins, [])
    calibrate.report([load], calibrate.Options(1000, 400, 1, Path(), 1))
    out = capsys.readouterr().out
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    (resolves,) = (row for row in rows if "noise s of" in " ".join(row))
    assert resolves[2:] == [
        "margin resolved by 6 rounds fixed beforehand",
        "margin resolved by 12 rounds fixed beforehand",
        "margin resolved after 6 of 3 to 12 rounds",
        "margin resolved after 12 of 3 to 12 rounds",
    ]
    assert rows[rows.index(resolves) + 2][2:] == [", ".join([f"{m:.2f}"] * 3) for m in (1.1, 1.11, 1.12, 1.13)]
    place = rows[0].index("s/distance")
    shown = [(row[place], row[-1].endswith("*")) for row in rows[2:6]]
    assert shown == [(f"{far.deciding:.2f}", True), ("0.41", False), ("0.40", True), ("inf", False)]
    assert WHY_SAVINGS in out
    assert calibrate.WHY_RESOLVED in out


def test_a_factor_on_latencies_is_the_same_factor_on_every_figure() -> None:
    rng = np.random.default_rng(2)
    base = PlayedRound(*(rng.lognormal(0, 1, n).astype(np.float32) for n in (400, 60, 3000)), engine_s=1.0)
    twice = PlayedRound(base.short_ttft * 2, base.long_ttft * 2, base.gaps * 2, engine_s=1.0)
    logs = log_ratios(Bank("low", {"baseline": [base], "candidate": [twice]}))
    assert logs == pytest.approx(np.full((1, 3), np.log(2)))


def test_tests_over_requests_hold_their_level_where_requests_are_independent() -> None:
    rng = np.random.default_rng(4)
    arms = [rng.lognormal(0, 0.3, (2, 400)) for _ in range(200)]
    assert np.mean([mann_whitney_differs(*both) for both in arms]) <= 0.05 + 3 * 0.0154
    assert np.mean([bootstrap_differs(*both, rng) for both in arms]) <= 0.05 + 3 * 0.0154
    assert mann_whitney_differs(arms[0][0], 1.2 * arms[0][1])
    assert bootstrap_differs(arms[0][0], 3 * arms[0][1], rng)


def test_the_bank_is_kept_and_the_short_way_to_a_verdict_is_the_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rounds played, one file; the same ones again with whole tables give the same verdict and intervals."""
    monkeypatch.setattr(calibration_bank, "BATCH", 4)
    bank = fill(tmp_path, "low", 1, 4, workers=1)
    kept = sorted(tmp_path.rglob("*.npz"))
    written = [path.stat().st_mtime_ns for path in kept]
    assert len(bank) == 4
    assert len(kept) == 1
    again = fill(tmp_path, "low", 1, 4, workers=1)
    assert [path.stat().st_mtime_ns for path in kept] == written
    assert (log_ratios(again) == log_ratios(bank)).all()

    the_rules = rules(1.4)
    the_rules = the_rules.model_copy(update={"rounds": the_rules.rounds.model_copy(update={"min": 4, "max": 4})})
    judge, places, swapped = Judge(the_rules), np.arange(4), np.array([False, True, False, True])
    effect = EFFECTS[-1].logs(judge)
    pairs = pairs_again("low", 1, places, swapped, effect)
    verdict, done = judged_in_full("low", 1, pairs, the_rules)
    short_way = judge.run(np.where(swapped, -1, 1)[:, None] * log_ratios(bank) + effect)
    assert differences(short_way, verdict, done, the_rules) == []
    assert differences(replace(short_way, outcome=Outcome.INVALID), verdict, done, the_rules) != []
