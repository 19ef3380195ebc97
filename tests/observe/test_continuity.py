"""Resets, restarts and broken sums: each is an event with what it took; a healthy server shows none."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from kvbench.observe.attempts import Attempt, Result
from kvbench.observe.canonical import identity_breaks, parse_engine, resets
from kvbench.observe.continuity import Fall, falls
from kvbench.observe.exposition import Exposition
from kvbench.observe.fetch import Fetched
from kvbench.observe.identities import IdentityWatch, identity_gaps, settled
from kvbench.observe.rows import metric_rows
from tests.observe.pages import by_label, counters, page


def at(moment: float, text: str) -> Fetched:
    """A scrape whose answer was there at a moment."""
    return Fetched(Attempt(moment, moment, Result.OK), 200, text)


def rows(*scrapes: Fetched) -> pd.DataFrame:
    return metric_rows(scrapes, 100.0).to_pandas()


def told(table: pd.DataFrame, name: str) -> list[tuple[float, dict[str, str], float]]:
    """(time, labels, value) of every row of a name."""
    chosen = table[table["name"] == name]
    return [
        (t, json.loads(labels), v) for t, labels, v in zip(chosen.t_s, chosen.labels, chosen.value, strict=True)
    ]


def prompts(*by_engine: float) -> str:
    """Prompt tokens of each rank."""
    samples = [(f'{{engine="{rank}"}}', str(tokens)) for rank, tokens in enumerate(by_engine)]
    return page("counter", "vllm:prompt_tokens_total", *samples)


class TestResets:
    def test_a_counter_that_fell_has_lost_what_it_counted(self) -> None:
        assert falls(parse_engine(prompts(50)), parse_engine(prompts(10))) == [Fall("prompt_tokens", 40)]
        assert falls(parse_engine(prompts(50)), parse_engine(prompts(50))) == []

    def test_one_rank_of_several_is_seen_though_the_sum_grows(self) -> None:
        assert falls(parse_engine(prompts(50, 50)), parse_engine(prompts(10, 500))) == [Fall("prompt_tokens", 40)]

    def test_a_series_that_went_away_has_lost_all_and_a_new_one_nothing(self) -> None:
        assert resets(parse_engine(prompts(50, 7)), parse_engine(prompts(50))) == ("prompt_tokens",)
        assert resets(parse_engine(prompts(50)), parse_engine(prompts(50, 7))) == ()

    def test_a_family_that_is_no_longer_declared_is_unknown(self) -> None:
        assert resets(parse_engine(prompts(50)), parse_engine("# TYPE a counter\n")) == ()

    def test_a_gauge_may_fall(self) -> None:
        several = [parse_engine(page("gauge", "vllm:num_requests_running", ("", n))) for n in ("5", "2")]
        assert resets(*several) == ()

    def test_no_number_is_no_fall(self) -> None:
        assert resets(parse_engine(prompts(50)), parse_engine(prompts(float("nan")))) == ()
        assert resets(parse_engine(prompts(float("inf"))), parse_engine(prompts(50))) == ()

    def test_tokens_by_source_fall_too(self) -> None:
        first, last = (
            by_label("vllm:prompt_tokens_by_source", "source", {"local_compute": n, "local_cache_hit": 5})
            for n in (90, 20)
        )
        assert falls(parse_engine(first), parse_engine(last)) == [Fall("prompt_tokens_by_source", 70)]

    def test_tokens_by_source_of_one_rank_are_seen_to_fall_though_their_sum_grows(self) -> None:
        first, last = (
            page(
                "counter",
                "vllm:prompt_tokens_by_source_total",
                *((f'{{engine="{rank}",source="local_compute"}}', str(n)) for rank, n in enumerate(tokens)),
            )
            for tokens in ((90, 50), (20, 400))
        )
        assert falls(parse_engine(first), parse_engine(last)) == [Fall("prompt_tokens_by_source", 70)]

    def test_counters_created_anew_are_another_process_and_late_children_are_none(self) -> None:
        def born(*seconds: str) -> Exposition:
            ranks = [(f'{{engine="{rank}"}}', s) for rank, s in enumerate(seconds)]
            return parse_engine(page("gauge", "vllm:prompt_tokens_created", *ranks))

        assert falls(born("100.5"), born("130.5")) == [Fall("process", 30)]
        assert falls(born("100.5", "100.5"), born("100.5", "130.5")) == [Fall("process", 30)]
        assert falls(born("100.5"), born("100.5", "130.5")) == []

    def test_a_server_without_creation_times_has_its_own_start(self) -> None:
        several = [parse_engine(page("gauge", "process_start_time_seconds", ("", s))) for s in ("100", "160")]
        assert falls(*several) == [Fall("process", 60)]

    def test_in_a_runs_metrics_it_is_an_event_with_a_time(self) -> None:
        table = rows(at(101, prompts(50, 50)), at(102, prompts(60, 60)), at(103, prompts(10, 500)))
        assert told(table, "counter_reset") == [(3.0, {"counter": "prompt_tokens"}, 50.0)]
        assert [value for _, _, value in told(table, "prompt_tokens")] == [100, 120, 510]

    def test_one_that_a_page_hides_is_seen_on_the_next(self) -> None:
        """Given a page that was cut off between two of them, then the rank that began anew meanwhile is found."""
        pages = prompts(50, 50), prompts(60, 60)[:-3], prompts(10, 500)
        table = rows(*(at(101 + number, text) for number, text in enumerate(pages)))
        assert told(table, "counter_reset") == [(3.0, {"counter": "prompt_tokens"}, 40.0)]

    @pytest.mark.shared
    def test_a_restart_is_seen_and_a_reset_of_the_cache_is_none(self, shared_dir: Path) -> None:
        folder = shared_dir / "facts" / "vllm-0.32.0"
        filled, loaded, restarted = (
            parse_engine((folder / f"tiering-{name}.prom").read_text())
            for name in ("after-fill", "after-load", "after-restart")
        )
        assert resets(filled, loaded) == ()
        assert {"process", "prompt_tokens", "engine_ttft_count"} <= set(resets(loaded, restarted))
        idle, reset = (parse_engine((folder / f"baseline-{n}.prom").read_text()) for n in ("idle", "after-reset"))
        assert resets(idle, reset) == ()


AT_REST = page("gauge", "vllm:num_requests_running", ("", "0")) + page(
    "gauge", "vllm:num_requests_waiting", ("", "0")
)
BUSY = page("gauge", "vllm:num_requests_running", ("", "1")) + page("gauge", "vllm:num_requests_waiting", ("", "0"))


def sound(prompt: float = 100, cached: float = 60) -> dict[str, str]:
    """A page on which every identity of vLLM holds, by part."""
    return {
        "prompts": counters({"vllm:prompt_tokens": prompt, "vllm:prompt_tokens_cached": cached}, engine="0"),
        "sources": by_label(
            "vllm:prompt_tokens_by_source",
            "source",
            {"local_compute": prompt - cached, "local_cache_hit": cached - 20, "external_kv_transfer": 20},
        ),
        "tiers": by_label(
            "vllm:prompt_tokens_cached_by_source", "source", {"device": cached - 20, "host": 15, "disk": 5}
        ),
        "hits": counters(
            {"vllm:prefix_cache_hits": cached - 20, "vllm:external_prefix_cache_hits": 20}, engine="0"
        ),
        "load": AT_REST,
    }


def breaks(**parts: str) -> tuple[str, ...]:
    """Of a sound page with some parts changed."""
    return identity_breaks(parse_engine("".join((sound() | parts).values())))


class TestIdentities:
    def test_hold_on_a_sound_page(self) -> None:
        assert breaks() == ()
        gaps = list(identity_gaps(parse_engine("".join(sound().values()))))
        assert [gap.identity.id for gap in gaps] == [
            "prompt-tokens",
            "cached-tokens",
            "cache-hits",
            "cached-sources",
        ]
        assert {gap.share for gap in gaps} == {0.0}

    def test_say_nothing_before_anything_was_counted(self) -> None:
        text = page("counter", "vllm:prompt_tokens_total", ("", "0")) + by_label(
            "vllm:prompt_tokens_by_source", "source", {"local_compute": 0}
        )
        assert list(identity_gaps(parse_engine(text))) == []

    @pytest.mark.shared
    def test_hold_on_every_captured_page(self, shared_dir: Path) -> None:
        checked = set()
        for file in sorted((shared_dir / "facts" / "vllm-0.32.0").glob("*.prom")):
            exposition = parse_engine(file.read_text())
            checked |= {gap.identity.id for gap in identity_gaps(exposition)}
            assert identity_breaks(exposition) == (), file.name
        assert checked == {"prompt-tokens", "cached-tokens", "cache-hits", "cached-sources", "found-tokens"}

    def test_sources_are_all_prompt_tokens(self) -> None:
        text = page("counter", "vllm:prompt_tokens_total", ("", "10")) + by_label(
            "vllm:prompt_tokens_by_source", "source", {"local_compute": 8}
        )
        assert identity_breaks(parse_engine(text)) == ("prompt tokens are 10, but their sources add up to 8",)

    def test_cached_sources_are_all_cached_tokens(self) -> None:
        more = by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": 40, "host": 25, "disk": 5})
        assert breaks(tiers=more) == (
            "cached tokens by source are 70, but hits of the device cache and of the tiers add up to 60",
            "cached prompt tokens are 60, but device, host, disk and other sources add up to 70",
        )

    def test_across_admission_and_prefill_hold_at_rest_only(self) -> None:
        more = by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": 40, "host": 25, "disk": 5})
        hits = counters({"vllm:prefix_cache_hits": 40, "vllm:external_prefix_cache_hits": 30}, engine="0")
        assert len(breaks(tiers=more, hits=hits)) == 1
        assert breaks(tiers=more, hits=hits, load=BUSY) == ()
        assert breaks(tiers=more, hits=hits, load="") == ()
        aborted = by_label("vllm:request_success", "finished_reason", {"length": 5, "abort": 1})
        assert breaks(tiers=more, hits=hits, load=AT_REST + aborted) == ()

    def test_go_on_being_checked_after_a_request_gave_up(self) -> None:
        """Given a request that was admitted and aborted, then sums across both hold for what came after it."""
        aborted = AT_REST + by_label("vllm:request_success", "finished_reason", {"length": 5, "abort": 1})

        def scrape(prompt: float, cached: float, tiers: float, load: str = aborted) -> Exposition:
            parts = sound(prompt, cached) | {"load": load}
            parts["tiers"] = by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": tiers})
            parts["hits"] = counters({"vllm:prefix_cache_hits": tiers, "vllm:external_prefix_cache_hits": 0})
            return parse_engine("".join(parts.values()))

        def missed(*scrapes: Exposition) -> list[tuple[str, float]]:
            watch = IdentityWatch()
            every = [gap for each in scrapes for gap in watch.gaps(each)]
            return [(gap.identity.id, gap.share) for gap in every if gap.share]

        left = scrape(100, 60, 70)  # ten tokens of the aborted request were only looked up
        assert missed(left, scrape(200, 160, 170)) == []
        assert missed(left, scrape(200, 160, 195)) == [("cached-sources", -0.2)]
        again = aborted.replace(" 1\n", " 2\n")
        assert again != aborted
        assert missed(left, scrape(200, 160, 195, again)) == []
        assert missed(left, scrape(200, 160, 195, BUSY)) == []
        assert missed(left, scrape(50, 20, 30), scrape(60, 30, 40)) == [], "a server that began anew"

    def test_of_a_new_process_are_not_judged_by_what_the_one_before_it_had_counted(self) -> None:
        """Given a request that gave up in either, and a new process that has counted further than the old."""

        def of(born: float, prompt: float, cached: float, tiers: float) -> str:
            parts = sound(prompt, cached) | {
                "load": AT_REST
                + by_label("vllm:request_success", "finished_reason", {"length": 5, "abort": 1})
                + page("gauge", "vllm:prompt_tokens_created", ('{engine="0"}', str(born))),
                "tiers": by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": tiers}),
                "hits": counters({"vllm:prefix_cache_hits": tiers, "vllm:external_prefix_cache_hits": 0}),
            }
            return "".join(parts.values())

        def missed(*pages: str) -> list[float]:
            table = rows(*(at(101 + number, text) for number, text in enumerate(pages)))
            return [value for _, _, value in told(table, "identity_gap") if value]

        old = of(100, 100, 60, 70)
        assert missed(old, of(100, 200, 160, 195)) == [-0.2], "the same process"
        assert missed(old, of(150, 200, 160, 195)) == []
        assert missed(old, of(150, 200, 160, 195), of(150, 300, 260, 320)) == [-0.2], "judged by its own rest"

    def test_a_cached_token_that_was_computed_all_the_same_is_counted_on_both_sides(self) -> None:
        """As releases from 0.16 on do for a prompt that was cached to its last token."""
        sources = by_label(
            "vllm:prompt_tokens_by_source",
            "source",
            {"local_compute": 41, "local_cache_hit": 41, "external_kv_transfer": 20},
        )
        assert len(breaks(sources=sources)) == 2
        recomputed = counters({"vllm:prompt_tokens_recomputed": 1}, engine="0")
        extra = by_label(
            "vllm:prompt_tokens_by_source",
            "source",
            {"local_compute": 40, "local_cache_hit": 41, "external_kv_transfer": 20},
        )
        assert breaks(sources=extra, load=AT_REST + recomputed) == ()

    def test_are_not_held_against_a_part_that_could_not_be_read(self) -> None:
        """Given a page on which what makes up for a gap stands twice, then there is no gap to be told."""
        twice = page("counter", "vllm:prompt_tokens_recomputed_total", ("", "1"), ("", "2"))
        extra = by_label(
            "vllm:prompt_tokens_by_source",
            "source",
            {"local_compute": 41, "local_cache_hit": 41, "external_kv_transfer": 20},
        )
        assert breaks(sources=extra, load=AT_REST + twice) == ()
        more = by_label("vllm:prompt_tokens_cached_by_source", "source", {"device": 40, "host": 25, "disk": 5})
        hits = counters({"vllm:prefix_cache_hits": 40, "vllm:external_prefix_cache_hits": 30}, engine="0")
        preempted = page("counter", "vllm:num_preemptions_total", ("", "1"), ("", "2"))
        assert breaks(tiers=more, hits=hits, load=AT_REST + preempted) == ()

    def test_that_need_what_is_not_told_are_not_checked(self) -> None:
        assert breaks(sources="", tiers="", hits="") == ()
        assert breaks(prompts=page("counter", "vllm:prompt_tokens_total", ("", "NaN"))) == ()

    def test_of_a_cache_server_hold_by_tier(self) -> None:
        found = counters(
            {
                "lmcache_mp_lookup_hit_tokens": 100,
                "lmcache_mp_lookup_hit_l1_tokens": 60,
                "lmcache_mp_lookup_hit_l2_tokens": 30,
            }
        )
        assert identity_breaks(parse_engine(found)) == ("tokens found are 100, but host and disk add up to 90",)

    def test_of_cache_levels_hold_where_levels_are_told(self) -> None:
        rest = AT_REST.replace("vllm:", "trtllm_")
        tokens = counters({"trtllm_prompt_tokens": 100, "trtllm_prompt_cached_tokens": 60}, model_name="m")
        empty = page("counter", "trtllm_prompt_cache_hit_tokens_total")
        levels = by_label("trtllm_prompt_cache_hit_tokens", "cache_tier", {"gpu": 30, "host": 10})
        assert settled(parse_engine(rest))
        assert identity_breaks(parse_engine(rest + tokens + empty)) == ()
        assert identity_breaks(parse_engine(rest + tokens + levels)) == (
            "cached prompt tokens are 60, but cache levels add up to 40",
        )

    def test_are_in_a_runs_metrics_at_every_scrape(self) -> None:
        whole = "".join(sound().values())
        broken = "".join((sound() | {"prompts": counters({"vllm:prompt_tokens": 125}, engine="0")}).values())
        table = rows(at(101, whole), at(102, broken), at(103, broken.replace(AT_REST, BUSY)))
        gaps = [row for row in told(table, "identity_gap") if row[1]["identity"] == "prompt-tokens"]
        assert [(t_s, labels["at"], value) for t_s, labels, value in gaps] == [
            (1.0, "rest", 0.0),
            (2.0, "rest", 0.2),
            (3.0, "load", 0.2),
        ]


class TestRows:
    SILENT = sound() | {
        "tiers": by_label(
            "vllm:prompt_tokens_cached_by_source", "source", {"device": 40, "host": 15, "external_unspecified": 5}
        )
    }

    def sources(self, *texts: str) -> set[str]:
        table = rows(*(at(101 + n, text) for n, text in enumerate(texts)))
        return {labels["source"] for _, labels, _ in told(table, "prompt_tokens_by_source")}

    def test_a_tier_that_is_not_named_once_makes_tiers_unknown_throughout(self) -> None:
        whole = "".join(sound().values())
        assert self.sources(whole) == {"computed", "device", "host", "disk", "elsewhere"}
        assert self.sources(whole, "".join(self.SILENT.values())) == {"computed", "device", "elsewhere"}

    def test_one_page_whose_tiers_cannot_be_read_leaves_them_known_in_the_others(self) -> None:
        """As when a proxy cuts a page off: that is not a server that keeps its tiers to itself."""
        whole = "".join(sound().values())
        tiers = sound()["tiers"]
        cut = "".join((sound() | {"tiers": "", "load": AT_REST + tiers[:-3]}).values())
        assert self.sources(whole, cut, whole) == {"computed", "device", "host", "disk", "elsewhere"}

    def test_tokens_from_a_peer_leave_the_tiers_known(self) -> None:
        peer = sound() | {
            "tiers": by_label(
                "vllm:prompt_tokens_cached_by_source", "source", {"device": 40, "host": 15, "p2p": 5, "disk": 0}
            )
        }
        assert self.sources("".join(peer.values())) == {"computed", "device", "host", "disk", "elsewhere"}

    def test_a_page_that_only_began_like_metrics_has_no_rows(self) -> None:
        assert len(rows(at(101, "# TYPE \nsorry"), at(102, "# TYPE a counter\n{"))) == 0
