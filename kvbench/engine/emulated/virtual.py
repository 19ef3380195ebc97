"""A round in virtual time: a schedule played against the emulated core as fast as the CPU goes.

The tables are those of a recorded round (`kvbench.record.tables`), so judging and planning work on them unchanged.
Seconds from the round's start, which is the end of priming. The client is perfect: it is never late.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from kvbench.engine.emulated.beginning import Beginning, look_before
from kvbench.engine.emulated.fates import Fates
from kvbench.engine.emulated.noise import seed_of
from kvbench.engine.emulated.prompts import Prompts
from kvbench.engine.emulated.residue import leave_residue
from kvbench.engine.emulated.scheduler import EmulatedCore
from kvbench.engine.emulated.scrapes import Scrapes
from kvbench.engine.emulated.sent import Moments, Sent
from kvbench.engine.emulated.simulated import SimulatedRound
from kvbench.engine.emulated.sizes import as_run, emulation_of, sizes_of
from kvbench.engine.emulated.standstill import Standstill
from kvbench.engine.emulated.tables import Answer, held, host_table, ledger_table, request_table, token_table
from kvbench.judge.evidence import EngineEvent
from kvbench.load.agenda import Agenda, Turn
from kvbench.load.refusals import Refusals
from kvbench.plan.host_rules import host_rules
from kvbench.plan.reuse import expected_sources
from kvbench.spec.emulation import Emulation, Injections
from kvbench.spec.profile import Profile
from kvbench.workload.schedule import PlannedRequest, Schedule, Segment

__all__ = ["SimulatedRound", "simulate"]

LEAD_S = 0.05
"""From the end of priming to time zero, as the load driver has it."""
NOTICED_S = 1.0
"""A process that has died, or begun anew, is noticed at the next look."""
SETTLE_S = 1.0
"""From the last answer to the last scrape, as in a recorded round."""


_expected = functools.lru_cache(maxsize=16)(expected_sources)


def simulate(
    schedule: Schedule,
    profile: Profile,
    *,
    label: str = "",
    emulation: Emulation | None = None,
    injections: Injections | None = None,
    scrape_every_s: float = 1.0,
) -> SimulatedRound:
    """Play `schedule` against the emulated engine of `profile` from an empty start.

    `label` names the launch: with the emulation's seed and the schedule's round it decides the noise. `emulation`
    and `injections` take the place of the profile's own. The same arguments give the same tables.
    """
    chosen = emulation or emulation_of(profile)
    injected = injections or profile.engine.inject or Injections()
    played = _Play(schedule, profile, chosen, injected, seed_of(chosen.seed, schedule.round, label), scrape_every_s)
    return played.play()


class _Play:
    """One round. The core's clock is the round's, moved by `_zero_s` so that priming has times from 0 on."""

    def __init__(
        self,
        schedule: Schedule,
        profile: Profile,
        emulation: Emulation,
        injections: Injections,
        seed: int,
        scrape_every_s: float,
    ) -> None:
        self._schedule, self._profile, self._injections = schedule, profile, injections
        asked = sizes_of(profile, emulation)
        self._asked = asked
        self._core = EmulatedCore(as_run(asked, injections), emulation, injections, seed)
        if injections.residue:
            leave_residue(self._core)
        self._costs = emulation.costs
        self._fates = Fates(injections)
        self._prompts = Prompts(schedule, asked.block_tokens)
        self._agenda = Agenda(schedule)
        self._follows = schedule.concurrency is not None or any(r.continues is not None for r in schedule.requests)
        self._number = 0
        self._zero_s = 0.0
        self._sent: dict[int, Sent] = {}
        self._arriving, self._deadlines, self._leaving = Moments(), Moments(), Moments()
        self._held = Moments()
        """When the client sees the end of what the core has finished."""
        self._beginning = Beginning((), ())
        self._priming = True
        self._answers: list[Answer] = []
        self._away_until_s = -math.inf
        self._gone = self._frozen = False
        self._standstill = Standstill(self._core, schedule.request_timeout_s)
        self._ends_s = math.inf
        self._events: list[EngineEvent] = []
        self._refused = self._served = 0
        self._refusals = Refusals()
        self._scrapes = Scrapes(self._core, injections.missing_metrics)
        self._scrape_every_s = scrape_every_s

    # -- the round --------------------------------------------------------------------------------------------

    def play(self) -> SimulatedRound:
        now_s = 0.0
        told = self._scrape(now_s)
        self._beginning = look_before(self._core, self._profile, told=told)
        for request in self._schedule.prime:
            now_s = self._prime(request, now_s)
        self._zero_s = now_s + LEAD_S
        self._priming = False
        for answer in self._answers:
            answer.move(-self._zero_s)
        self._run()
        self._scrape(self._core_end_s())
        for request in self._agenda.close():
            self._answers.append(Answer.unsent(request))
        return self._result()

    def _prime(self, request: PlannedRequest, now_s: float) -> float:
        """Send one request and wait for its end."""
        if self._gone or self._frozen:
            return now_s
        sent = self._send(Turn(request, now_s, "previous turn", request.segments), now_s)
        deadline_s = now_s + (self._standstill.patience_s if self._frozen else self._schedule.request_timeout_s)
        while not sent.over:
            moment_s = min(self._arriving.first_s, self._held.first_s, deadline_s)
            self._core.advance(moment_s, stop_at_finish=True)
            self._collect()
            self._show(moment_s)
            if sent.over:
                break
            self._arrive(moment_s)
            if moment_s >= deadline_s and not sent.over:
                self._fail(sent, "timeout: while priming", deadline_s)
                if self._frozen:
                    self._end_at(deadline_s, EngineEvent("frozen", deadline_s, self._standstill.text))
        answer = self._answers[-1]
        return max(now_s, answer.ended_s)

    def _run(self) -> None:
        """From time zero until everything is answered or given up. Times here are the core's."""
        zero_s, agenda = self._zero_s, self._agenda
        end_s = zero_s + self._schedule.duration_s
        scrape_s = zero_s
        while True:
            due_s = math.inf if agenda.next_due_s is None else zero_s + agenda.next_due_s
            waiting = (self._arriving, self._held, self._leaving, self._deadlines)
            moment_s = min(due_s, scrape_s, self._ends_s, *(moments.first_s for moments in waiting))
            if due_s == math.inf and not self._sent and scrape_s > end_s:
                return
            self._core.advance(moment_s, stop_at_finish=self._follows)
            if self._collect() and self._follows:
                continue
            self._show(moment_s)
            if moment_s >= self._ends_s:
                self._give_up(moment_s)
                return
            if moment_s == scrape_s:
                self._scrapes.look_in_time(moment_s, requests=self._number, away=self._away(moment_s))
                self._look_for_standstill(moment_s)
                scrape_s += self._scrape_every_s
            self._send_due(moment_s)
            self._arrive(moment_s)
            for _, sent in self._leaving.until(moment_s):
                self._leave(sent, moment_s)
            for _, sent in self._deadlines.until(moment_s):
                self._fail(sent, "timeout: no end within the time allowed", moment_s)

    def _send_due(self, now_s: float) -> None:
        while (due_s := self._agenda.next_due_s) is not None and self._zero_s + due_s <= now_s:
            turn = self._agenda.take_due(due_s)
            if turn is None:
                return
            self._due(turn)

    def _due(self, turn: Turn) -> None:
        if self._schedule.concurrency is not None:
            phase = self._schedule.phase_at(turn.intended_s)
            turn.request = replace(turn.request, phase=phase.name, measured=phase.measured)
        self._send(turn, self._zero_s + turn.intended_s)

    def _send(self, turn: Turn, now_s: float) -> Sent:
        planned = turn.request
        fate = self._fates.of(self._number, self._prompts.tokens(planned), planned.output_tokens)
        self._number += 1
        request = self._prompts.request(planned, min(fate.output_tokens, planned.returned_tokens))
        sent = Sent(turn, request, fate, now_s)
        self._sent[planned.id] = sent
        self._strike(self._number - 1, now_s)
        if sent.over:
            return sent
        handling_s = self._costs.request + self._costs.request_token * request.prompt_tokens
        self._core.disturb(now_s, handling_s)
        self._arriving.add(now_s + handling_s, sent)
        self._deadlines.add(now_s + self._schedule.request_timeout_s, sent)
        if planned.abort_after_s is not None:
            self._leaving.add(now_s + planned.abort_after_s, sent)
        return sent

    def _arrive(self, now_s: float) -> None:
        """Requests that reach the scheduler."""
        for at_s, sent in self._arriving.until(now_s):
            if self._away(at_s):
                self._fail(sent, "refused: nobody listens", at_s)
            elif sent.fate.error:
                self._fail(sent, "http_status: 500: injected", at_s, http_status=500)
            else:
                self._core.submit(sent.request, at_s)

    def _away(self, now_s: float) -> bool:
        """Whether nobody listens."""
        return self._gone or now_s < self._away_until_s

    def _strike(self, number: int, now_s: float) -> None:
        """What happens to the engine as a whole when it is sent the request of this number."""
        for event in self._fates.strikes(number):
            match event:
                case "counter_reset":
                    self._core.reset_counters()
                case "restart":
                    self._restart(now_s)
                case "death":
                    self._die(now_s)
                case "freeze":
                    self._core.freeze()
                    self._frozen = True

    def _restart(self, now_s: float) -> None:
        self._core.restart()
        self._break_all(now_s)
        down_s = self._injections.restart.down if self._injections.restart is not None else 0.0
        self._away_until_s = now_s + down_s
        self._end_at(self._away_until_s + NOTICED_S, EngineEvent("restarted", now_s, "its counters began anew"))

    def _die(self, now_s: float) -> None:
        self._gone = True
        self._core.freeze()
        self._break_all(now_s)
        self._end_at(now_s + NOTICED_S, EngineEvent("died", now_s, "the engine is gone"))

    def _break_all(self, now_s: float) -> None:
        """Every connection: those of requests that are still handled and of answers that are held as well."""
        for sent in list(self._sent.values()):
            self._fail(sent, "stream_broken: the connection was closed", now_s)

    def _look_for_standstill(self, now_s: float) -> None:
        if self._standstill.look(now_s) and self._ends_s == math.inf:
            self._end_at(now_s, EngineEvent("frozen", now_s, self._standstill.text))

    def _look_for_refusal(self, now_s: float) -> None:
        """An answer has ended: whether the engine refuses everything."""
        self._refusals.tell(now_s, refused=self._refused, served=self._served, status=500)
        if self._refusals.every and self._ends_s == math.inf:
            detail = f"it answers /health and {self._refusals.text}"
            self._end_at(now_s + NOTICED_S, EngineEvent("refusing", now_s, detail))

    def _end_at(self, ends_s: float, event: EngineEvent) -> None:
        self._ends_s = ends_s
        self._events.append(event)

    def _give_up(self, now_s: float) -> None:
        for sent in list(self._sent.values()):
            self._fail(sent, "stopped: the round was ended early", now_s)

    # -- answers ----------------------------------------------------------------------------------------------

    def _collect(self) -> bool:
        """Take in what the core has finished; True when there was anything."""
        finished = self._core.take_finished()
        for request in finished:
            sent = self._sent.get(request.id)
            if sent is None or sent.request is not request:
                continue
            if sent.fate.held_s:
                self._held.add(held(request.times, sent.fate.held_s)[-1], sent)
            else:
                self._answered(sent)
        return bool(finished)

    def _show(self, now_s: float) -> None:
        """Answers that were held back until now."""
        for _, sent in self._held.until(now_s):
            self._answered(sent)

    def _answered(self, sent: Sent) -> None:
        promoted_tokens = sent.request.promoted_tokens
        answer = Answer.of(
            sent.turn,
            sent.request,
            sent.fate,
            sent_s=sent.sent_s,
            zero_s=self._zero_s,
            corrupt=self._fates.corrupts(promoted_tokens),
            leaked=self._prompts.other_than(sent.turn.request) if self._fates.leaks(promoted_tokens) else None,
        )
        self._settle(sent, answer)

    def _leave(self, sent: Sent, now_s: float) -> None:
        """Its user has had enough, as planned."""
        self._core.abort(sent.request, now_s)
        answer = Answer.left(
            sent.turn, sent.request, sent.fate, sent_s=sent.sent_s, ended_s=now_s, zero_s=self._zero_s
        )
        self._settle(sent, answer)

    def _fail(self, sent: Sent, error: str, now_s: float, http_status: int | None = None) -> None:
        self._core.abort(sent.request, now_s)
        answer = Answer.failed(
            sent.turn,
            sent.request,
            sent.fate,
            error,
            sent_s=sent.sent_s,
            ended_s=now_s,
            zero_s=self._zero_s,
            http_status=http_status,
        )
        self._settle(sent, answer)

    def _settle(self, sent: Sent, answer: Answer) -> None:
        sent.over = True
        del self._sent[sent.turn.request.id]
        self._answers.append(answer)
        self._refused += answer.http_status == 500
        self._served += answer.http_status == 200
        if self._priming:
            return
        self._look_for_refusal(self._zero_s + answer.ended_s)
        planned = sent.turn.request
        output = None if answer.error else Segment(-1 - planned.id, planned.returned_tokens)
        for lost, due_s in self._agenda.over(sent.turn, answer.ended_s, output):
            self._answers.append(Answer.lost(lost, due_s))

    # -- metrics ----------------------------------------------------------------------------------------------

    def _core_end_s(self) -> float:
        """A moment after the last answer and the copies that follow it."""
        ended_s = max((a.ended_s for a in self._answers if not math.isnan(a.ended_s)), default=0.0)
        end_s = self._zero_s + ended_s + SETTLE_S
        self._core.advance(end_s)
        return end_s

    def _scrape(self, now_s: float) -> bool:
        """Before the round and after it; False: nothing could be had."""
        return self._scrapes.look(now_s, requests=self._number, away=self._away(now_s))

    def _result(self) -> SimulatedRound:
        sizes = self._asked
        sources = _expected(
            self._schedule,
            block_tokens=sizes.block_tokens,
            device_blocks=sizes.device_blocks,
            host_blocks=sizes.host_chunks * sizes.blocks_per_chunk,
            disk=sizes.disk,
            host_rules=host_rules(self._profile.tiers.host, sizes.block_tokens),
        )
        events = tuple(EngineEvent(e.kind, e.t_s - self._zero_s, e.detail) for e in self._events)
        requests = request_table(self._answers, round_=self._schedule.round, arm=self._profile.name)
        return SimulatedRound(
            requests=requests,
            ledger=ledger_table(requests, self._answers, self._profile.tier_names),
            tokens=token_table(self._answers),
            metrics=self._scrapes.table(self._zero_s),
            host=host_table(self._schedule.duration_s),
            events=events,
            scrapes=self._scrapes.summary(),
            capacities=self._core.sizes.capacities,
            expected_sources={source: float(tokens) for source, tokens in sources.items()},
            config_differences=self._beginning.config_differences,
            residue=self._beginning.residue,
        )
