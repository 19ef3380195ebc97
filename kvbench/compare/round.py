"""One round of one arm: launch, prove, drive, scrape, stop, store. Everything it starts it also ends."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pandas as pd

from kvbench.compare.cold import Before, look_before
from kvbench.compare.disk_limit import DiskLimit
from kvbench.compare.ledgers import keep_told, write_ledger
from kvbench.compare.listener import LoadListener
from kvbench.compare.load_plan import load_plan, room_for_prompts
from kvbench.compare.stall import gather
from kvbench.compare.watch import FROZEN_AFTER_S, Watch
from kvbench.engine.base import Effective, Endpoint, Engine, Launch
from kvbench.engine.create import create_engine
from kvbench.engine.emulated.launched import EmulatedEngine
from kvbench.engine.launch import plan_disk_directory
from kvbench.engine.vllm import publishes_events
from kvbench.interrupts import raise_if_stopped
from kvbench.judge.evidence import ArmRound, ScrapeSummary
from kvbench.load.calibrate import calibrated
from kvbench.load.calibrate_demand import check_capacity
from kvbench.load.run import LoadResult, run_load
from kvbench.observe.host import HostSampler
from kvbench.observe.kv_events import KvEventListener
from kvbench.observe.precedence import observers_first
from kvbench.observe.scrape import Scraper
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.plan.profile_sources import profile_sources
from kvbench.record.journal import Journal
from kvbench.record.manifest import EngineEventRecord, RoundRecord, ScrapeRecord
from kvbench.record.run_directory import utc_now
from kvbench.report.progress import LiveView
from kvbench.spec.profile import Profile
from kvbench.workload.build import build_schedule
from kvbench.workload.schedule import Schedule
from kvbench.workload.storage import read_schedule, write_schedule

__all__ = ["RoundJob", "make_launch", "record_round"]

REPEATS_APART = 1_000_000
"""Between the identities of a round and of its repeats; no run has so many rounds."""

HEALTH_S = 2.0

SETTLE_S = 1.0
"""After the last answer: cascade stores and their counters finish after the HTTP response (half a second and one
more engine step were enough on the embedded engine)."""


@dataclass(frozen=True)
class RoundJob:
    """Which round of which arm."""

    profile: Profile
    index: int
    attempt: int
    order: int
    prove_only: bool = False
    """Launch and prove, but drive no load: another arm has already turned out not to be what was asked for."""

    @property
    def label(self) -> str:
        """Unique within the run."""
        repeat = f"-again-{self.attempt}" if self.attempt else ""
        return f"{self.profile.name}-{self.index}{repeat}"


@dataclass(frozen=True)
class _Observed:
    """What a round left behind besides its tables."""

    scrapes: ScrapeSummary
    load: LoadResult
    watch: Watch
    disk_excess: str | None
    """What the disk tier took beyond its limit; such a tier is not as asked."""


def record_round(job: RoundJob, journal: Journal, view: LiveView) -> ArmRound:
    """Record one round; its tables and its entry in run.json are on disk when this returns."""
    from kvbench.compare.stored import read_round

    raise_if_stopped()
    run = journal.run
    directory = run.round_directory(job.profile.name, job.index)
    run.set_spoiled_aside(job.profile.name, job.index)
    directory.mkdir(parents=True)
    started = utc_now()
    calibration = calibrated(lambda text: _on_progress(view, text))
    view.stage(f"starting {job.profile.name} for round {job.index}")
    with ExitStack() as stack:
        launch = make_launch(job.profile, directory, job.label)
        listener = _listener(job.profile, stack)
        if listener is not None:
            launch = replace(launch, kv_events=listener.target)
        engine = create_engine(job.profile, launch)
        stack.callback(_stop, engine, job, view)
        endpoint = engine.start(lambda text: _on_progress(view, text))
        effective = engine.effective()
        before = look_before(engine, endpoint, launch)
        unproven = before.not_emptied
        observed = None
        if not effective.differences and not job.prove_only:
            schedule = _schedule(job, journal, effective)
            unproven += room_for_prompts(schedule, endpoint)
            calibration = check_capacity(
                schedule,
                journal.manifest.crew,
                as_text=bool(endpoint.words),
                progress=lambda text: _on_progress(view, text),
            )
            observed = _drive(job, journal, engine, endpoint, schedule, launch, view, listener)
            if isinstance(engine, EmulatedEngine):
                keep_told(directory, engine.told_sources(job.index))
    record = _record(job, journal, started, effective, before, unproven, observed)
    record = record.model_copy(
        update={
            "load": record.load | calibration.figures() if record.load else {},
            "token_id_range": endpoint.token_id_range,
            "stop_remarks": list(engine.remarks()),
        }
    )
    write_ledger(run, job.profile, record)
    journal.add(record)
    return read_round(run, record)


def _listener(profile: Profile, stack: ExitStack) -> KvEventListener | None:
    """Of an engine that publishes what becomes of its blocks; closed with `stack`."""
    if profile.engine.kind != "vllm" or not publishes_events(profile):
        return None
    listener = KvEventListener()
    stack.callback(listener.close)
    return listener


def _stop(engine: Engine, job: RoundJob, view: LiveView) -> None:
    """End it, and say how where that took more than asking, also when the round has failed."""
    try:
        engine.stop()
    finally:
        for remark in engine.remarks():
            view.note(f"{job.profile.name}, round {job.index}: {remark}")


def _on_progress(view: LiveView, text: str) -> None:
    raise_if_stopped()
    view.stage(text)


def make_launch(profile: Profile, directory: Path, label: str) -> Launch:
    """Where one start keeps its things; a disk tier gets a directory of its own, which the start makes."""
    disk = profile.tiers.disk if profile.engine.kind != "attached" else None
    return Launch(
        directory=directory,
        log=directory / "engine-1.log",
        disk_directory=plan_disk_directory(disk.path, label) if disk is not None else None,
        label=label,
    )


def _schedule(job: RoundJob, journal: Journal, effective: Effective) -> Schedule:
    """The round's schedule: made by whichever arm comes first, then the same for all."""
    path = journal.run.schedule_path(job.index)
    if path.exists():
        return read_schedule(path)
    facts = _baseline_facts(job, journal, effective)
    schedule = build_schedule(
        journal.manifest.workload,
        _identity(job, journal),
        block_tokens=_whole(facts, "block_tokens"),
        capacities_tokens=_capacities_tokens(facts, journal),
        max_model_len=_whole(facts, "max_model_len"),
    )
    path.parent.mkdir(exist_ok=True)
    write_schedule(schedule, path)
    return schedule


def _identity(job: RoundJob, journal: Journal) -> int:
    """What the round's prefixes are derived from: its number, and how many schedules were set aside because servers
    that go on running had been sent them."""
    return job.index + REPEATS_APART * journal.run.schedules_aside(job.index)


def _baseline_facts(job: RoundJob, journal: Journal, effective: Effective) -> dict[str, float]:
    """The baseline engine's sizes, whichever arm plays first: pools sized from them are equal for all arms."""
    baseline = journal.manifest.arms[0].name
    for record in journal.manifest.rounds:
        if record.arm == baseline and record.capacities:
            return record.capacities
    return _capacities(job, effective)


def _whole(facts: dict[str, float], name: str) -> int | None:
    return int(facts[name]) if name in facts else None


def _capacities_tokens(facts: dict[str, float], journal: Journal) -> dict[str, int] | None:
    """Of the baseline's device tier, and of the largest host tier among the arms."""
    if "block_tokens" not in facts or "device_blocks" not in facts:
        return None
    capacities = {"device": int(facts["block_tokens"] * facts["device_blocks"])}
    hosts = [arm.profile.tiers.host.size for arm in journal.manifest.arms if arm.profile.tiers.host is not None]
    if hosts and facts.get("kv_bytes_per_token"):
        capacities["host"] = int(max(hosts) // facts["kv_bytes_per_token"])
    return capacities


def _drive(
    job: RoundJob,
    journal: Journal,
    engine: Engine,
    endpoint: Endpoint,
    schedule: Schedule,
    launch: Launch,
    view: LiveView,
    events: KvEventListener | None,
) -> _Observed:
    """Play the schedule while scraping and sampling; both are stopped and written whatever happens."""
    directory = launch.directory
    disk = job.profile.tiers.disk
    with ExitStack() as stack:
        scraper = Scraper(endpoint.metrics_url, directory, access=endpoint.access)
        host = HostSampler(directory, engine_pids=lambda: engine.state().pids, disk_path=launch.disk_directory)
        stack.callback(scraper.close)
        stack.callback(host.close)
        patience_s = min(FROZEN_AFTER_S, journal.manifest.workload.request_timeout)
        watch = Watch(
            engine,
            latest=scraper.latest,
            beginnings=scraper.beginnings,
            frozen_after_s=patience_s,
            evidence=lambda: (
                gather(directory, log=launch.log, pids=engine.state().pids, metrics=scraper.latest()).name
            ),
            healthy=lambda: _says_healthy(engine, endpoint),
        )
        limit = DiskLimit(launch.disk_directory, disk.size_limit if disk is not None else None)
        if events is not None:
            events.start(directory)
        scraper.start()
        host.start()
        listener = LoadListener(job.profile.name, job.index, schedule.duration_s, watch, scraper, view)
        with observers_first():
            load = run_load(
                load_plan(job.profile, job.index, journal, endpoint, directory),
                on_event=listener,
                should_stop=lambda: _look(listener, limit),
            )
            time.sleep(SETTLE_S)
        limit.look()
        zero = watch.time_zero if watch.time_zero is not None else time.monotonic()
        scrapes = scraper.stop(zero, measured=_measured_span(schedule), answered_until_s=_answered_until(directory))
        host.stop(zero)
        watch.requests_failed(load.figures.get("failed", 0.0))
        watch.look()
        if events is not None:
            events.stop(zero)
    return _Observed(scrapes, load, watch, limit.exceeded)


def _says_healthy(engine: Engine, endpoint: Endpoint) -> bool:
    """Whether `/health` is 200. An attached server that is alive has been asked that already."""
    if engine.kind == "attached":
        return True
    try:
        return httpx.get(f"{endpoint.base_url}/health", timeout=HEALTH_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _look(listener: LoadListener, limit: DiskLimit) -> bool:
    """Whether to end the round now. What goes wrong while the driver is still starting is seen once it plays."""
    raise_if_stopped()
    return listener.begun and (listener.watch() or limit())


def _answered_until(directory: Path) -> float | None:
    """When a request was last answered, seconds from the round's start; None also where rows were lost."""
    if not (directory / "requests.parquet").exists():
        return None
    answered = pd.read_parquet(directory / "requests.parquet", columns=["last_token_s"])["last_token_s"].max()
    return None if pd.isna(answered) else float(answered)


def _measured_span(schedule: Schedule) -> tuple[float, float]:
    measured = [phase for phase in schedule.phases if phase.measured]
    return (measured[0].start_s, measured[-1].end_s) if measured else (0.0, schedule.duration_s)


def _record(
    job: RoundJob,
    journal: Journal,
    started: str,
    effective: Effective,
    before: Before,
    unproven: tuple[str, ...],
    observed: _Observed | None,
) -> RoundRecord:
    return RoundRecord(
        arm=job.profile.name,
        index=job.index,
        state="done",
        launch=job.label if job.profile.engine.kind != "attached" else job.profile.name,
        started_utc=started,
        order=job.order,
        engine_version=effective.version,
        effective={k: v for k, v in vars(effective).items() if k not in ("differences", "unknown")},
        config_differences=[*effective.differences, *_excess(observed)],
        config_unknown=[*effective.unknown, *unproven],
        residue=list(before.residue),
        residue_unknown=list(before.residue_unknown),
        events=[EngineEventRecord(**vars(e)) for e in observed.watch.events] if observed else [],
        scrapes=ScrapeRecord(**vars(observed.scrapes)) if observed else ScrapeRecord(),
        spoiled_attempts=job.attempt,
        expected_sources=_expected(job, journal, effective) if observed else None,
        capacities=_capacities(job, effective),
        load=observed.load.figures if observed else {},
        load_faults=list(observed.load.faults) if observed else [],
    )


def _excess(observed: _Observed | None) -> list[str]:
    return [observed.disk_excess] if observed and observed.disk_excess else []


def _capacities(job: RoundJob, effective: Effective) -> dict[str, float]:
    facts = {
        "block_tokens": effective.block_tokens,
        "device_blocks": effective.device_blocks,
        "host_bytes": effective.host_bytes,
        "max_model_len": effective.max_model_len,
        "kv_bytes_per_token": kv_bytes_per_token(job.profile),
    }
    return {name: float(value) for name, value in facts.items() if value is not None}


def _expected(job: RoundJob, journal: Journal, effective: Effective) -> dict[str, float] | None:
    """Tokens by source that the schedule's reuse predicts at this engine's sizes."""
    if effective.block_tokens is None or effective.device_blocks is None:
        return None
    sources = profile_sources(
        read_schedule(journal.run.schedule_path(job.index)),
        job.profile,
        block_tokens=effective.block_tokens,
        device_blocks=effective.device_blocks,
        host_bytes=effective.host_bytes or 0,
        disk=bool(effective.disk),
    )
    return {source: float(tokens) for source, tokens in sources.items()} if sources is not None else None
