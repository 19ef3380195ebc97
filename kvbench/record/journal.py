"""The manifest of a run that is under way: every change is on disk before the next step begins."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from kvbench.record.manifest import Manifest, RoundRecord
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.crew import Crew

__all__ = ["Journal"]


class Journal:
    """Holds the newest manifest of `run` and writes it whenever it changes."""

    def __init__(self, run: RunDirectory, manifest: Manifest) -> None:
        self.run = run
        self.manifest = manifest
        run.write_manifest(manifest)

    def _update(self, **changes: object) -> None:
        self.manifest = self.manifest.model_copy(update=changes)
        self.run.write_manifest(self.manifest)

    def add(self, record: RoundRecord) -> None:
        """Append a round."""
        self._update(rounds=[*self.manifest.rounds, record])

    def mark_spoiled(self, index: int, because: list[str], arms: Collection[str] | None = None) -> None:
        """The rounds of these arms (None: of every arm) at `index` do not count; they are kept on disk under
        another name."""

        def spoiled(record: RoundRecord) -> bool:
            return record.index == index and record.state == "done" and (arms is None or record.arm in arms)

        for arm in {record.arm for record in self.manifest.rounds if spoiled(record)}:
            self.run.set_spoiled_aside(arm, index)
        if any(arm.profile.engine.kind == "attached" for arm in self.manifest.arms):
            self.run.set_schedule_aside(
                index
            )  # its prefixes are known to the servers, so it cannot be played again
        self._update(
            rounds=[
                r.model_copy(update={"state": "spoiled", "spoiled_because": because}) if spoiled(r) else r
                for r in self.manifest.rounds
            ]
        )

    def mark_lost(self, record: RoundRecord) -> None:
        """The tables of a round are gone or damaged: it is recorded again. What is left of it stays on disk."""
        self._update(
            rounds=[r.model_copy(update={"state": "lost"}) if r == record else r for r in self.manifest.rounds]
        )
        round_ = f"round {record.index} of {record.arm}"
        self.warn(f"{round_} was recorded again, because its tables were gone or damaged")

    def begin_anew(self, index: int, keep: Collection[str] = ()) -> None:
        """Have every arm but those of `keep` play round `index` again, with other prompts: a server that goes on
        running was sent some of it and may still hold them. This is no repeat of a spoiled round. What there is
        stays on disk."""
        arms = [arm.name for arm in self.manifest.arms if arm.name not in keep]
        # In this order, a kill between any two steps leaves what says that it is to be begun anew.
        self.run.set_schedule_aside(index)
        self._update(
            rounds=[
                r.model_copy(update={"state": "unpaired"})
                if r.index == index and r.state == "done" and r.arm in arms
                else r
                for r in self.manifest.rounds
            ]
        )
        self.warn(
            f"round {index} was begun anew with other prompts: it had been cut short at a server that may still "
            "hold what it was sent"
        )
        for arm in arms:
            self.run.set_spoiled_aside(arm, index)

    def spoiled_attempts(self, index: int) -> int:
        """How often the pair at `index` has been spoiled."""
        counts: dict[str, int] = {}
        for record in self.manifest.rounds:
            if record.index == index and record.state == "spoiled":
                counts[record.arm] = counts.get(record.arm, 0) + 1
        return max(counts.values(), default=0)

    def set_crew(self, crew: Crew) -> None:
        """Who drives the load from now on."""
        self._update(crew=crew)

    def warn(self, text: str) -> None:
        """Keep a sentence that every report has to show."""
        self._update(warnings=[*self.manifest.warnings, text])

    def set_state(self, state: Literal["running", "interrupted", "failed", "finished"]) -> None:
        """How far the run as a whole has got."""
        self._update(state=state)
