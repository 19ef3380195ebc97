"""The emulated engine's core: steps of a continuously batching engine as discrete events. Seconds on any clock.

No I/O and no clock of its own: it is told the time, so virtual time and a real server use it alike. The order of
things is that of vLLM 0.32's scheduler: running requests first, then waiting ones while budget, places and blocks
last; whole blocks can be hit from the step on in which they are computed.
"""

from __future__ import annotations

import math

from kvbench.engine.emulated.counters import Counters
from kvbench.engine.emulated.device import DeviceBlocks
from kvbench.engine.emulated.noise import Variation
from kvbench.engine.emulated.pace import LONGEST_STRETCH, Pace, Scheduled
from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.sizes import Sizes
from kvbench.engine.emulated.tiers import Tiers
from kvbench.spec.emulation import Emulation, Injections

__all__ = ["EmulatedCore"]


class EmulatedCore:
    """`submit` requests, `advance` the time, `take_finished`. Between calls nothing happens."""

    def __init__(self, sizes: Sizes, emulation: Emulation, injections: Injections, seed: int) -> None:
        self.sizes = sizes
        self._block_tokens = sizes.block_tokens
        self._costs = emulation.costs
        self._injections = injections
        self._variation = Variation(emulation.noise, seed)
        self._pace = Pace(emulation.costs, injections, self._variation)
        self._miscount = injections.miscounted_sources.share if injections.miscounted_sources else 0.0
        self._on_disk: set[int] = set()
        self.counters = Counters()
        self._begin()

    def _begin(self) -> None:
        """A process that has just started; what lies on disk is still there."""
        self._device = DeviceBlocks(self.sizes.device_blocks)
        self.tiers: Tiers | None = None
        if self.sizes.host_bytes:
            self.tiers = Tiers(self.sizes, self._costs, self._injections, self._variation, self.counters)
            self.tiers.on_disk = self._on_disk
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._finished: list[Request] = []
        self._unsettled: list[Request] = []
        """Finished, and the tiers have not been told yet."""
        self._step: Scheduled = []
        self._step_ends_s: list[float] = []
        self._frozen = False
        self.next_s = math.inf
        """When something will happen if nothing is submitted before."""

    # -- from outside -----------------------------------------------------------------------------------------

    def submit(self, request: Request, now_s: float) -> None:
        """A request has arrived. Everything up to `now_s` must have been advanced."""
        request.arrived_s = now_s
        if self.tiers is not None:
            self.tiers.prepare(request)
        self._waiting.append(request)
        self._pace.arrived(now_s)
        if not self._step and not self._frozen:
            self.next_s = min(self.next_s, now_s)

    def disturb(self, now_s: float, work_s: float) -> None:
        """The server works outside its engine for so long; a step on the same cores ends later."""
        by_s = self._costs.shared_cores * work_s
        if by_s and self._step and not self._frozen:
            self._step_ends_s = [end_s + by_s if end_s > now_s else end_s for end_s in self._step_ends_s]
            self.next_s = self._step_ends_s[-1]

    def advance(self, until_s: float, *, stop_at_finish: bool = False) -> None:
        """Let everything happen that happens by `until_s`; nothing may be submitted for an earlier time later."""
        while self.next_s <= until_s:
            self._turn(self.next_s, until_s)
            if stop_at_finish and self._finished:
                return

    def take_finished(self) -> list[Request]:
        """Requests that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def abort(self, request: Request, now_s: float) -> None:
        """The client has gone."""
        if request.finish_reason is not None:
            return
        request.output_tokens = request.generated
        request.finish_reason = "abort"
        if request in self._waiting and not request.loading:
            self._waiting.remove(request)
            self._end(request, "abort", now_s)
        elif request in self._running and all(request is not stepping for stepping, _ in self._step):
            self._running.remove(request)
            self._end(request, "abort", now_s)

    def freeze(self) -> None:
        """No step is ever finished again."""
        self._frozen = True
        self.next_s = math.inf

    def restart(self) -> None:
        """As a new process: empty but for the disk; what was under way is lost."""
        self.counters = Counters()
        self._begin()

    def reset_counters(self) -> None:
        """Counters begin anew, and nothing else does."""
        self.counters = Counters()
        if self.tiers is not None:
            self.tiers.counters = self.counters

    def reset_caches(self, *, external: bool) -> bool:
        """Empty the device, and the host tier as well if asked; False while requests are under way."""
        if self._waiting or self._running or not self._device.reset():
            return False
        if external and self.tiers is not None:
            self.tiers.forget()
        return True

    def empty_disk(self) -> None:
        """All files are gone."""
        self._on_disk.clear()

    @property
    def free_device_blocks(self) -> int:
        """Blocks that are not in use now."""
        return self._device.free_blocks

    def read_gauges(self) -> Counters:
        """The counters, with the moment's values in them."""
        counters = self.counters
        counters.running = len(self._running)
        counters.waiting = len(self._waiting)
        counters.usage = self._device.used_share
        return counters

    # -- one turn ---------------------------------------------------------------------------------------------

    def _turn(self, now_s: float, until_s: float) -> None:
        """The end of a step or a moment at which something has arrived, and the beginning of the next step."""
        if self._step:
            self._finish_step(now_s)
        if self.tiers is not None:
            self.tiers.arrive(now_s)
        admitted = self._schedule(now_s)
        if self.tiers is not None:
            after = [(r, r.computed + count) for r, count in self._step if r.offered < r.storable]
            self.tiers.schedule_ended(after, self._unsettled, now_s)
        self._unsettled.clear()
        if self._step:
            self._begin_step(now_s, until_s, decoding=not admitted)
            self.next_s = self._step_ends_s[-1]
        else:
            self.next_s = self._idle_until_s(now_s)
        if self._frozen:
            self.next_s = math.inf

    def _idle_until_s(self, now_s: float) -> float:
        """Nothing can be computed before a transfer is done or the disk tier has answered."""
        if self.tiers is None:
            return math.inf
        if self.tiers.pending:  # of a request that ended, or of one that waits: no step is under way
            self.tiers.step_ended(now_s)
        return self._arrival_s(now_s)

    def _arrival_s(self, now_s: float) -> float:
        """When the next transfer or answer of the disk tier is there, as far as is known."""
        if self.tiers is None:
            return math.inf
        next_s = self.tiers.next_end_s()
        for request in self._waiting:
            if now_s < request.wake_s < next_s:
                next_s = request.wake_s
        return next_s

    def _begin_step(self, now_s: float, until_s: float, *, decoding: bool) -> None:
        """Fix when the step ends; a stretch of equal decode steps that nothing can disturb is taken as one."""
        begun = self._pace.begin(self._step, now_s)
        if self._costs.shared_cores and self.tiers is not None:
            more_s = self._costs.shared_cores * self.tiers.work_within(begun.work_s)
            begun = begun._replace(end_s=begun.end_s + more_s)
        self._step_ends_s = [begun.end_s]
        if decoding and not begun.computes and len(self._step) == len(self._running):
            until_s = min(until_s, self._arrival_s(now_s))
            self._step_ends_s += self._pace.go_on(begun, self._undisturbed_steps() - 1, until_s)
            self._claim_blocks(len(self._step_ends_s))

    def _undisturbed_steps(self) -> int:
        """How many steps of the running requests alone change nothing but their lengths."""
        tiers, shared = self.tiers, self._costs.shared_cores
        if tiers is not None and (tiers.pending or not self.sizes.prompt_only or (shared and tiers.moving)):
            return 1
        steps = LONGEST_STRETCH
        for request in self._running:
            steps = min(steps, request.output_tokens - request.generated)
        needed = 0
        for request in self._running:
            if not self._within(request, request.computed + steps):
                needed += self._missing_blocks(request, request.computed + steps)
        return steps if needed <= self._device.free_blocks else 1

    def _claim_blocks(self, steps: int) -> None:
        if steps > 1:
            for request in self._running:
                if not self._within(request, request.computed + steps):
                    self._extend(request, steps)

    def _finish_step(self, now_s: float) -> None:
        step, ends_s = self._step, self._step_ends_s
        steps = len(ends_s)
        self._step = []
        counters = self.counters
        over = False
        for request, count in step:
            request.computed += count + steps - 1
            if request.computed < request.total_tokens:
                over |= request.finish_reason is not None
                continue
            if not request.times:
                counters.prefilled(request, now_s, self._miscount)
            request.times.extend(ends_s)
            request.generated += steps
            counters.generation_tokens += steps
            over |= request.generated >= request.output_tokens
        if over:
            still: list[Request] = []
            for request in self._running:
                if request.generated >= request.output_tokens:
                    self._end(request, "length", now_s)
                else:
                    still.append(request)
            self._running = still
        if self.tiers is not None:
            self.tiers.step_ended(now_s)

    def _end(self, request: Request, reason: str, now_s: float) -> None:
        request.finish_reason = request.finish_reason or reason
        self._device.release(request.own_blocks)
        request.own_blocks = []
        self.counters.over(request, now_s)
        self._finished.append(request)
        self._unsettled.append(request)

    # -- scheduling -------------------------------------------------------------------------------------------

    def _schedule(self, now_s: float) -> bool:
        """Fill `_step`; True when a request was let in, or one that runs was pushed out."""
        budget = self.sizes.max_batched_tokens
        running, step = self._running, self._step
        index = 0
        disturbed = False
        while index < len(running) and budget > 0:
            request = running[index]
            count = min(request.prompt_tokens + request.generated - request.computed, budget)
            if not (self._within(request, request.computed + count) or self._extend(request, count)):
                self._preempt(running.pop())
                disturbed = True
                continue
            step.append((request, count))
            budget -= count
            index += 1
        if disturbed or not self._waiting:
            return disturbed
        return self._admit(budget, now_s)

    def _preempt(self, request: Request) -> None:
        """Take a running request's blocks away; it begins again, as the first of those that wait."""
        self._device.release(request.own_blocks)
        request.own_blocks = []
        request.computed = request.registered = 0
        request.preempted = True
        request.loading = request.loaded = False
        self._waiting.insert(0, request)
        self.counters.preemptions += 1

    def _admit(self, budget: int, now_s: float) -> bool:
        """Waiting requests in order; those whose KV has been loaded come first."""
        let_in: list[Request] = []
        changed = False
        ready = [request for request in self._waiting if request.loaded]
        others = [request for request in self._waiting if not request.loading]
        for request in (*ready, *others):
            if len(self._running) >= self.sizes.max_sequences or budget <= 0:
                break
            if request.loaded:
                count = self._resume(request, budget)
            elif self._must_wait(request, now_s):
                continue
            else:
                count = self._begin_request(request, budget, now_s)
            if count is None:
                break
            changed |= request.loading or count > 0
            if count > 0:
                budget -= count
                let_in.append(request)
                self._running.append(request)
                self._step.append((request, count))
                if math.isnan(request.scheduled_s):
                    request.scheduled_s = now_s
        if let_in:
            gone = set(map(id, let_in))
            self._waiting = [request for request in self._waiting if id(request) not in gone]
        return changed

    def _must_wait(self, request: Request, now_s: float) -> bool:
        """Its look-up was undecided, and nothing has arrived since."""
        return self.tiers is not None and request.version == self.tiers.version and now_s < request.wake_s

    def _resume(self, request: Request, budget: int) -> int | None:
        """What was to be loaded is on the device; None: no room for the rest."""
        self._register(request, request.cached)
        request.computed = min(request.cached, request.total_tokens - 1)
        count = min(request.total_tokens - request.computed, budget)
        if self._missing_blocks(request, request.total_tokens) > self._device.free_blocks:
            return None
        self._extend(request, count)
        request.loading = request.loaded = False
        return count

    def _begin_request(self, request: Request, budget: int, now_s: float) -> int | None:
        """Look its prompt up and give it blocks: tokens to compute now; 0: it waits for a tier; None: no room."""
        sizes, device = self.sizes, self._device
        total, block_tokens = request.total_tokens, sizes.block_tokens
        blocks = device.leading(request.keys, (total - 1) // block_tokens)
        behind = None if self.tiers is None else self.tiers.lookup(request, len(blocks), now_s)
        if behind is None and self.tiers is not None:
            return 0
        hit = len(blocks) * block_tokens
        idle = device.idle(blocks)
        free = device.free_blocks - idle
        if -(-total // block_tokens) - len(blocks) > free:
            return None
        if self.tiers is not None and behind:
            needed = -(-(hit + behind) // block_tokens) - len(blocks)
            if needed > free - self._reserved():
                return None
            device.take(blocks)
            request.own_blocks = blocks + device.allocate(needed)
            request.registered = len(blocks)
            request.loading = True
            request.cached = hit + behind
            self.tiers.load(request, len(blocks), behind)
            self._count_admission(request, hit)
            if self._injections.useless_hits:
                request.useless_tokens = behind
            return 0
        device.take(blocks)
        request.own_blocks = blocks
        request.registered = len(blocks)
        request.computed = hit
        count = min(total - hit, budget)
        self._extend(request, count)
        self._count_admission(request, hit)
        return count

    def _count_admission(self, request: Request, hit: int) -> None:
        if not request.preempted:
            request.device_tokens = hit
            self.counters.admitted(request)

    def _reserved(self) -> int:
        """Blocks that prompts under way, or being loaded, still need (vLLM holds them back from further loads)."""
        return sum(
            self._missing_blocks(request, request.total_tokens)
            for request in (*self._running, *self._waiting)
            if request.loading or (request.own_blocks and request.computed < request.prompt_tokens)
        )

    def _within(self, request: Request, tokens: int) -> bool:
        """Whether so many tokens end in a block that the request has, and fill none that others cannot hit yet."""
        block_tokens = self._block_tokens
        return tokens <= len(request.own_blocks) * block_tokens and tokens // block_tokens <= request.registered

    def _missing_blocks(self, request: Request, tokens: int) -> int:
        return max(0, -(-tokens // self.sizes.block_tokens) - len(request.own_blocks))

    def _extend(self, request: Request, count: int) -> bool:
        """Blocks for `count` further tokens; False: there are not enough."""
        tokens = request.computed + count
        needed = -(-tokens // self.sizes.block_tokens) - len(request.own_blocks)
        if needed > 0:
            if needed > self._device.free_blocks:
                return False
            request.own_blocks += self._device.allocate(needed)
        self._register(request, tokens)
        return True

    def _register(self, request: Request, tokens: int) -> None:
        """Whole blocks up to `tokens` can be hit from now on."""
        full = min(tokens // self.sizes.block_tokens, len(request.keys))
        if full > request.registered:
            first, request.registered = request.registered, full
            self._device.register(request.own_blocks[first:full], request.keys[first:full])
