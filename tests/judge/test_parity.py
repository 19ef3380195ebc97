"""Output parity: divergence of answers that the tier may have touched, beyond the engine's own noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from kvbench.judge.case import build_case
from kvbench.judge.evidence import Comparison, RoundPair
from kvbench.judge.guardrails import judge_guardrails
from kvbench.judge.judge import judge
from kvbench.judge.parity import Compared, compare_outputs
from kvbench.judge.rates import share_lower, share_upper
from kvbench.judge.verdict import RuleResult
from tests.judge.ask import about, guarded
from tests.judge.build import BASELINE, COPY, TIERED, comparison, good_pairs, rules, same_pairs

Edit = Callable[[pd.DataFrame], None]
N = 400


def edit_both(pairs: list[RoundPair], base: Edit | None = None, cand: Edit | None = None) -> list[RoundPair]:
    changed = []
    for pair in pairs:
        sides = {}
        for name, edit in (("baseline", base), ("candidate", cand)):
            table = getattr(pair, name).requests.copy()
            if edit is not None:
                edit(table)
            sides[name] = replace(getattr(pair, name), requests=table)
        changed.append(replace(pair, **sides))
    return changed


def diverge(rows: slice) -> Edit:
    """These answers come out differently."""

    def edit(table: pd.DataFrame) -> None:
        table.loc[rows, "output_digest"] = "other"

    return edit


def repeats(cached: float, *, diverged: int = 0, count: int = 100) -> Edit:
    """The last `count` requests send the prompts of the first ones again."""

    def edit(table: pd.DataFrame) -> None:
        again = table.index[-count:]
        table.loc[again, "repeat_of"] = table["id"].iloc[:count].to_numpy()
        table.loc[again, "prompt_digest"] = table["prompt_digest"].iloc[:count].to_numpy()
        table.loc[again, "output_digest"] = table["output_digest"].iloc[:count].to_numpy()
        table.loc[again[:diverged], "output_digest"] = "noise"
        table.loc[again, "cached_tokens"] = cached
        table.loc[: count - 1, "cached_tokens"] = 0

    return edit


def compared(run: Comparison) -> tuple[Compared, Compared]:
    return compare_outputs(build_case(run))


def parity(run: Comparison, **rule: Any) -> RuleResult:
    written = {"id": "parity", "metric": "output_parity", **rule}
    return guarded(replace(run, rules=rules(guardrails=[written])), "parity")


class TestWhatIsCompared:
    def test_with_a_new_tier_answers_that_it_may_have_touched(self) -> None:
        tested, noise = compared(comparison(good_pairs(1)))
        assert (tested, noise) == (Compared(200, 0), Compared(200, 0))

    def test_answers_computed_in_both_arms_are_the_engines_noise(self) -> None:
        pairs = edit_both(good_pairs(1), cand=diverge(slice(190, 209)))
        assert compared(comparison(pairs)) == (Compared(200, 10), Compared(200, 10))

    def test_what_the_baseline_had_cached_as_well_says_nothing(self) -> None:
        pairs = edit_both(good_pairs(1), base=lambda t: t.__setitem__("cached_tokens", 900))
        assert compared(comparison(pairs)) == (Compared(), Compared())

    def test_answers_of_unknown_source_are_tested(self) -> None:
        pairs = edit_both(good_pairs(1), cand=lambda t: t.__setitem__("cached_tokens", np.nan))
        assert compared(comparison(pairs)) == (Compared(400, 0), Compared())

    def test_another_prompt_is_not_compared(self) -> None:
        pairs = edit_both(good_pairs(1), cand=lambda t: t.loc.__setitem__((slice(0, 9), "prompt_digest"), "x"))
        assert compared(comparison(pairs))[0] == Compared(190, 0)

    def test_an_answer_of_another_length_is_not_compared(self) -> None:
        pairs = edit_both(
            good_pairs(1), cand=lambda t: t.loc.__setitem__((slice(0, 9), "output_tokens_received"), 4)
        )
        assert compared(comparison(pairs))[0] == Compared(190, 0)

    def test_failed_requests_have_no_answer(self) -> None:
        pairs = edit_both(good_pairs(1), cand=lambda t: t.loc.__setitem__((slice(0, 9), "status"), "error"))
        assert compared(comparison(pairs))[0] == Compared(190, 0)

    def test_requests_outside_measured_phases_show_noise_only(self) -> None:
        def warm(table: pd.DataFrame) -> None:
            table.loc[:99, "measured"] = False
            table.loc[300:, "measured"] = False

        assert compared(comparison(edit_both(good_pairs(1), warm, warm))) == (Compared(100, 0), Compared(200, 0))

    def test_prompts_sent_again_and_computed_are_noise_in_the_baseline(self) -> None:
        pairs = edit_both(good_pairs(1), base=repeats(cached=0, diverged=7))
        _, noise = compared(comparison(pairs))
        # 100 repeats, and the 100 requests computed in both arms whose prompts are still equal.
        assert noise == Compared(200, 7)

    def test_prompts_sent_again_and_cached_are_no_noise(self) -> None:
        pairs = edit_both(good_pairs(1), base=repeats(cached=900, diverged=7))
        assert compared(comparison(pairs))[1] == Compared(100, 0)

    def test_prompts_sent_again_in_the_candidate_compare_sources(self) -> None:
        pairs = edit_both(good_pairs(1), base=repeats(cached=900), cand=repeats(cached=900, diverged=7))
        tested, noise = compared(comparison(pairs))
        # 100 cached ones against the baseline's and 100 repeats against the candidate's own computed answers.
        assert tested == Compared(200, 7)
        assert noise == Compared(200, 0)

    def test_repeats_of_something_unknown_are_left_out(self) -> None:
        pairs = edit_both(good_pairs(1), base=lambda t: t.__setitem__("repeat_of", 10_000))
        assert compared(comparison(pairs))[1] == Compared(200, 0)

    def test_without_a_new_tier_all_answers_are_compared_and_only_repeats_are_noise(self) -> None:
        run = comparison(same_pairs(1), candidate=COPY)
        assert compared(run) == (Compared(400, 0), Compared())
        with_repeats = edit_both(same_pairs(1), base=repeats(cached=0, diverged=3), cand=repeats(cached=0))
        assert compared(comparison(with_repeats, candidate=COPY)) == (Compared(400, 3), Compared(100, 3))

    def test_another_kv_data_type_cannot_be_its_own_noise(self) -> None:
        tiers = TIERED.tiers.model_copy(
            update={"device": BASELINE.tiers.device.model_copy(update={"kv_dtype": "fp8"})}
        )
        run = comparison(good_pairs(1), candidate=TIERED.model_copy(update={"tiers": tiers}))
        assert compared(run) == (Compared(200, 0), Compared())

    def test_prefixes_behind_the_answers_are_counted_each_once(self) -> None:
        """200 answers of the candidate under test, and 100 that it computed once and then served from the cache."""

        def shared(table: pd.DataFrame) -> None:
            table["prefix"] = np.arange(N) % 10

        run = comparison(edit_both(good_pairs(1), shared, shared))
        assert compared(run)[0].prefixes == 10
        both = edit_both(good_pairs(2), shared, shared)
        assert compared(comparison(both))[0].prefixes == 20, "each round has prefixes of its own"
        again = edit_both(both[:1], base=repeats(cached=900), cand=repeats(cached=900))
        assert compared(comparison(again))[0].prefixes == 10
        itself = comparison(edit_both(same_pairs(1), shared, shared), candidate=COPY)
        assert compared(itself)[0].prefixes == 10

    def test_prefixes_of_two_classes_are_two(self) -> None:
        def shared(table: pd.DataFrame) -> None:
            table["prefix"] = 3
            table["class"] = np.where(np.arange(N) % 2, "short", "long")

        assert compared(comparison(edit_both(good_pairs(1), shared, shared)))[0].prefixes == 2

    def test_an_answer_without_a_prefix_stands_for_itself(self) -> None:
        assert compared(comparison(good_pairs(1)))[0].prefixes == 200

    def test_arms_may_answer_in_another_order_and_number(self) -> None:
        pairs = good_pairs(1)
        shuffled = pairs[0].candidate.requests.sample(frac=1, random_state=1).iloc[:300]
        pairs = [replace(pairs[0], candidate=replace(pairs[0].candidate, requests=shuffled))]
        tested, noise = compared(comparison(pairs))
        assert (tested.pairs + noise.pairs, tested.diverged + noise.diverged) == (300, 0)


class TestStatus:
    def test_without_divergence_the_bound_must_come_down_to_the_margin(self) -> None:
        found = parity(comparison(good_pairs()), max=0.01)
        assert found.status == "pass"
        assert found.decision_ci is not None
        assert found.decision_ci[1] == pytest.approx(share_upper(0, 600, 0.025))
        assert found.decision_ci[0] == pytest.approx(-share_upper(0, 600, 0.0125))
        assert (found.baseline, found.candidate, found.effect, found.limit, found.unit) == (
            0.0,
            0.0,
            0.0,
            0.01,
            "fraction",
        )

    def test_says_what_it_is_about(self) -> None:
        assert about(parity(comparison(good_pairs()), max=0.01)) == (
            "parity", "guardrail", "output_parity", None, "all", "fraction", 0.01,
        )  # fmt: skip

    def test_says_that_answers_from_one_prefix_are_taken_as_independent(self) -> None:
        """The interval is that of independent answers all the same: see `evaluate_parity`."""

        def shared(table: pd.DataFrame) -> None:
            table["prefix"] = np.arange(N) % 10

        alone = parity(comparison(good_pairs()), max=0.01)
        found = parity(comparison(edit_both(good_pairs(), shared, shared)), max=0.01)
        assert alone.text.endswith("at most 1 % asked for: safe")
        assert found.text == (
            f"{alone.text}; answers are taken as independent, though they come from 30 prefixes: where one bad "
            "block spoils all answers from its prefix, the interval is too narrow"
        )
        assert (found.status, found.decision_ci) == (alone.status, alone.decision_ci)

    def test_the_margin_is_half_a_per_cent_unless_set(self) -> None:
        found = parity(comparison(good_pairs()))
        assert (found.limit, found.status) == (0.005, "unknown")

    def test_corrupt_answers_of_promoted_requests_are_a_breach(self) -> None:
        run = comparison(edit_both(good_pairs(), cand=diverge(slice(0, 19))))
        found = parity(run)
        assert found.status == "fail"
        low = share_lower(60, 600, 0.0125) - share_upper(0, 600, 0.0125)
        assert found.decision_ci is not None
        assert found.decision_ci[0] == pytest.approx(low)
        assert found.text.startswith("output parity: 60 of 600 answers differ (0 of 600 computed twice)")
        assert (
            judge(replace(run, rules=rules(guardrails=[{"id": "p", "metric": "output_parity"}]))).verdict == "NO_GO"
        )

    def test_noise_as_large_is_no_breach(self) -> None:
        run = comparison(edit_both(good_pairs(), cand=diverge(slice(180, 219))))
        found = parity(run)
        assert found.status == "unknown"
        assert found.effect == pytest.approx(0.0)
        assert found.decision_ci is not None
        assert found.decision_ci[1] == pytest.approx(share_upper(60, 600, 0.0125) - share_lower(60, 600, 0.0125))

    def test_without_noise_measured_a_breach_cannot_be_proven(self) -> None:
        pairs = edit_both(good_pairs(), cand=diverge(slice(0, 199)))
        pairs = edit_both(pairs, base=lambda t: t.loc.__setitem__((slice(200, None), "cached_tokens"), 1))
        found = parity(comparison(pairs))
        assert (found.status, found.baseline, found.effect) == ("unknown", None, None)
        assert "its noise was not measured" in found.text

    def test_nothing_to_compare_is_unknown(self) -> None:
        pairs = edit_both(good_pairs(), cand=lambda t: t.__setitem__("output_digest", None))
        found = parity(comparison(pairs))
        assert found.text == "output parity was not measured: no answers to equal prompts to compare"
        assert found.status == "unknown"

    def test_before_the_first_look_nothing_is_decided(self) -> None:
        found = parity(comparison(good_pairs(2)), max=0.01)
        assert (found.status, found.decision_ci) == ("unknown", None)

    def test_it_is_not_judged_by_class(self) -> None:
        assert parity(comparison(good_pairs()), **{"class": "long"}).status == "unknown"

    def test_an_arm_against_itself_with_near_ties_is_no_breach(self) -> None:
        """2 % of answers differ between two launches of one arm, and nothing says how much is noise."""
        run = comparison(edit_both(same_pairs(), cand=diverge(slice(0, 7))), candidate=COPY)
        assert parity(run).status == "unknown"


class TestHowMuchMoreItTakes:
    """As many answers a round, differing as often: an open parity tells its rounds as every counted rule does."""

    PARITY: ClassVar = {"id": "parity", "metric": "output_parity"}

    def needed(
        self, pairs: list[RoundPair], rounds: tuple[int, int] = (3, 3), **rule: Any
    ) -> tuple[int, int] | None:
        run = comparison(pairs, rules(guardrails=[self.PARITY | rule], rounds=rounds))
        (ruling,) = (found for found in judge_guardrails(build_case(run)) if found.result.rule == "parity")
        assert ruling.result.status == "unknown"
        return ruling.needed_units

    def test_without_divergence(self) -> None:
        """200 answers a round; 0.5 % takes 736 of them at 2.5 %, and 879 at what earlier looks leave of it."""
        assert self.needed(good_pairs()) == (4, 4)
        assert self.needed(good_pairs(), rounds=(3, 12)) == (5, 5)
        assert self.needed(good_pairs(), max=0.001) == (19, 19)
        assert share_upper(0, 19 * 200, 0.025) <= 0.001 < share_upper(0, 18 * 200, 0.025)

    def test_with_more_than_is_tolerated(self) -> None:
        """Of 200 answers a round 3 differ: too few so far to say that it is more than half a per cent."""
        found = self.needed(edit_both(good_pairs(), cand=diverge(slice(0, 2))))
        assert found is not None
        for rounds, proven in ((found[0] - 1, False), (found[0], True)):
            pairs, diverged = 200 * rounds, 3 * rounds
            low = share_lower(diverged, pairs, 0.0125) - share_upper(0, pairs, 0.0125)
            assert (low > 0.005) is proven
        assert found[0] > 3

    def test_a_breach_is_never_proven_while_noise_is_not_measured(self) -> None:
        pairs = edit_both(good_pairs(), cand=diverge(slice(0, 4)))
        assert self.needed(edit_both(pairs, base=lambda t: t.__setitem__("cached_tokens", 1))) is None

    def test_does_not_silence_the_verdict(self) -> None:
        verdict = judge(comparison(good_pairs(), rules(guardrails=[self.PARITY])))
        assert verdict.verdict == "INCONCLUSIVE"
        assert verdict.rounds.needed == (4, 4)
        assert verdict.reasons[-1] == "at the noise seen so far about 1 more round would settle it, after 3"
