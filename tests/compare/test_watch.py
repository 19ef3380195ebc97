"""A dead or frozen engine is noticed, a slow one is not mistaken for either."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvbench.compare.watch import Watch
from kvbench.engine.base import EngineState
from kvbench.observe.continuity import Beginning


@dataclass
class Scene:
    """A clock, an engine and its metrics, all moved by hand."""

    now: float = 100.0
    alive: bool = True
    metrics: dict[str, float] = field(default_factory=dict)
    beginnings: list[Beginning] = field(default_factory=list)
    pids: tuple[int, ...] = ()
    asked: int = 0
    healthy: bool = True

    def state(self) -> EngineState:
        self.asked += 1
        return EngineState(self.alive, "" if self.alive else "killed by signal 9", self.pids)

    def watch(self) -> Watch:
        return Watch(
            self,  # type: ignore[arg-type]
            latest=lambda: self.metrics,
            beginnings=lambda: self.beginnings,
            frozen_after_s=30,
            healthy=lambda: self.healthy,
            clock=lambda: self.now,
        )

    def begins_anew(self, process: bool | None) -> None:
        """The newest scrape showed counters that began anew."""
        self.beginnings.append(Beginning(1600.0, process))


def test_an_engine_that_dies_before_time_zero_is_noticed() -> None:
    scene = Scene()
    watch = scene.watch()
    assert not watch()
    scene.now, scene.alive = 101.5, False
    assert watch()
    assert [(e.kind, e.t_s, e.detail) for e in watch.events] == [("died", 0.0, "killed by signal 9")]


def test_a_death_is_told_in_seconds_from_time_zero_and_once() -> None:
    scene = Scene()
    watch = scene.watch()
    watch.time_zero = 100.0
    scene.alive, scene.now = False, 112.0
    assert watch()
    scene.now = 120.0
    assert watch()
    assert [e.t_s for e in watch.events] == [12.0]


def test_it_looks_at_most_once_a_second() -> None:
    scene = Scene()
    watch = scene.watch()
    for _ in range(10):
        watch()
        scene.now += 0.2
    assert scene.asked == 2


@pytest.mark.parametrize("state", ["requests_running", "requests_waiting"])
def test_requests_under_way_and_no_token_is_frozen_whatever_health_says(state: str) -> None:
    scene = Scene(metrics={state: 3.0, "prompt_tokens": 50.0})
    watch = scene.watch()
    watch.time_zero = 100.0
    while not watch() and scene.now < 200:
        scene.now += 1.0
    assert watch.events[0].kind == "frozen"
    assert 30 < watch.events[0].t_s <= 32


@pytest.mark.parametrize(
    "moves",
    [
        lambda scene, watch: scene.metrics.update(prompt_tokens=scene.metrics["prompt_tokens"] + 1),
        lambda scene, watch: scene.metrics.update(requests_running=0.0),
        lambda scene, watch: watch.tokens_received(scene.now),
    ],
    ids=["tokens move", "nothing under way", "the client receives tokens"],
)
def test_progress_of_any_kind_is_not_frozen(moves) -> None:
    scene = Scene(metrics={"requests_running": 1.0, "prompt_tokens": 5.0})
    watch = scene.watch()
    for _ in range(120):
        moves(scene, watch)
        assert not watch()
        scene.now += 1.0


def failing(scene: Scene, watch: Watch, *, for_s: int, per_s: float, refused: float = 0.0) -> None:
    """Requests that fail, at a steady pace, until something is noticed; a share of them by a refusal."""
    watch.time_zero = scene.now
    for second in range(for_s):
        watch.tokens_received(7.0)
        watch.requests_failed(per_s * second)
        watch.answers(refused=int(refused * per_s * second), served=float(second), status=503)
        if watch():
            return
        scene.now += 1.0


@pytest.mark.parametrize("metrics", [{}, {"requests_running": 0.0, "prompt_tokens": 5.0}], ids=["none", "idle"])
def test_requests_that_all_fail_without_a_token_are_frozen_whatever_the_metrics_say(
    metrics: dict[str, float],
) -> None:
    scene = Scene(metrics=metrics)
    watch = scene.watch()
    failing(scene, watch, for_s=100, per_s=2)
    assert [(e.kind, e.t_s) for e in watch.events] == [("frozen", 31.0)]


def test_a_few_lost_requests_are_errors_and_not_a_frozen_engine() -> None:
    scene = Scene()
    watch = scene.watch()
    failing(scene, watch, for_s=100, per_s=0.09)
    assert watch.events == []


def test_requests_that_are_refused_have_been_answered() -> None:
    scene = Scene()
    watch = scene.watch()
    failing(scene, watch, for_s=100, per_s=2, refused=1.0)
    assert watch.events == []


def test_an_engine_too_slow_for_every_time_out_is_not_frozen_while_it_computes() -> None:
    scene = Scene(metrics={"prompt_tokens": 5.0})
    watch = scene.watch()
    for second in range(100):
        watch.requests_failed(2.0 * second)
        watch.answers(refused=0, served=0.0, status=None)
        scene.metrics["prompt_tokens"] += second % 20 == 0
        assert not watch()
        scene.now += 1.0


@pytest.mark.parametrize("prompt_tokens", [20.0, 900.0], ids=["tells less", "tells more"])
def test_another_process_is_a_restart_whatever_it_counts_and_though_no_request_failed(prompt_tokens: float) -> None:
    scene = Scene(metrics={"prompt_tokens": 500.0})
    watch = scene.watch()
    watch.time_zero = 100.0
    assert not watch()
    scene.begins_anew(process=True)
    scene.now, scene.metrics = 107.0, {"prompt_tokens": prompt_tokens}
    assert watch()
    assert [(e.kind, e.t_s) for e in watch.events] == [("restarted", 7.0)]


def test_what_began_before_the_first_look_counts_too() -> None:
    scene = Scene()
    scene.begins_anew(process=True)
    assert scene.watch()()


def test_counters_anew_while_requests_fail_are_a_restart_where_nobody_tells_of_the_process() -> None:
    scene = Scene()
    watch = scene.watch()
    watch.time_zero = 100.0
    assert not watch()
    watch.requests_failed(3)
    scene.begins_anew(process=None)
    scene.now = 107.0
    assert watch()
    assert [(e.kind, e.t_s) for e in watch.events] == [("restarted", 7.0)]


def test_counters_anew_of_other_processes_than_before_are_a_restart() -> None:
    scene = Scene(pids=(7, 8))
    watch = scene.watch()
    assert not watch()
    scene.begins_anew(process=None)
    scene.now, scene.pids = 102.0, (9, 10)
    assert watch()


def test_a_restart_near_the_end_of_a_round_is_found_by_the_look_after_its_last_scrape() -> None:
    scene = Scene()
    watch = scene.watch()
    assert not watch()
    scene.now += 0.5
    scene.begins_anew(process=True)
    assert not watch(), "it looks at most once a second by itself"
    watch.look()
    assert [e.kind for e in watch.events] == ["restarted"]


def test_requests_that_fail_soon_after_the_counters_began_anew_tell_of_a_restart_too() -> None:
    scene = Scene()
    watch = scene.watch()
    assert not watch()
    scene.now += 2
    scene.begins_anew(process=None)
    assert not watch()
    scene.now += 2
    watch.requests_failed(1)
    assert watch()
    assert [e.kind for e in watch.events] == ["restarted"]


def test_counters_anew_and_nothing_else_are_a_reset_that_the_judge_finds() -> None:
    scene = Scene()
    watch = scene.watch()
    watch.requests_failed(3)
    for _ in range(6):
        assert not watch()
        scene.now += 1
    scene.begins_anew(process=None)
    for _ in range(10):
        scene.now += 1
        assert not watch()
    watch.requests_failed(4)
    scene.now += 1
    assert not watch()


def test_counters_anew_of_a_process_that_goes_on_are_a_reset_though_requests_fail() -> None:
    scene = Scene()
    watch = scene.watch()
    assert not watch()
    scene.begins_anew(process=False)
    watch.requests_failed(3)
    scene.now = 102.0
    assert not watch()


def refused(scene: Scene, watch: Watch, *, for_s: int, per_s: int, total: int = 0, served: float = 0.0) -> int:
    """A second at a time; the refusals so far."""
    for _ in range(for_s):
        scene.now += 1.0
        total += per_s
        watch.answers(refused=total, served=served, status=503)
        if watch():
            break
    return total


@pytest.mark.parametrize(
    ("healthy", "detail"),
    [
        (True, "it answers /health and refuses every request with 503, 18 in a row"),
        (False, "it refuses every request with 503, 18 in a row"),
    ],
)
def test_an_engine_that_refuses_every_request_has_stopped_serving(healthy: bool, detail: str) -> None:
    scene = Scene(healthy=healthy)
    watch = scene.watch()
    watch.time_zero = 100.0
    refused(scene, watch, for_s=20, per_s=3)
    assert [(e.kind, e.t_s, e.detail) for e in watch.events] == [("refusing", 6.0, detail)]


def test_refusals_count_from_the_newest_of_anything_that_was_served() -> None:
    scene = Scene()
    watch = scene.watch()
    total = refused(scene, watch, for_s=4, per_s=30)
    total = refused(scene, watch, for_s=4, per_s=30, total=total, served=1.0)
    total = refused(scene, watch, for_s=4, per_s=30, total=total, served=2.0)
    assert watch.events == []
    refused(scene, watch, for_s=4, per_s=30, total=total, served=2.0)
    assert [e.kind for e in watch.events] == ["refusing"]


def test_a_burst_that_was_refused_is_an_error_and_not_the_end() -> None:
    scene = Scene()
    watch = scene.watch()
    total = refused(scene, watch, for_s=1, per_s=50)
    refused(scene, watch, for_s=60, per_s=0, total=total)
    assert watch.events == []


def test_a_few_refusals_are_no_end_however_long_they_take() -> None:
    scene = Scene()
    watch = scene.watch()
    refused(scene, watch, for_s=9, per_s=1)
    assert watch.events == []
