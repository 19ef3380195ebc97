"""Which worker plays what: a pure function of a schedule and the number of workers."""

from __future__ import annotations

from dataclasses import replace

from kvbench.workload.schedule import PlannedRequest, Schedule

__all__ = ["split"]


def split(schedule: Schedule, workers: int) -> list[Schedule]:
    """The share of each worker. Together they are the schedule: every request once, at its own time.

    Requests of a session, and those that continue or wait for others, are one conversation and stay with one
    worker. Conversations are dealt out in the order of their first requests, so that at any time each
    worker has about as much to do as the others. The first worker primes. In a closed loop slots are dealt out, and
    each conversation goes where its slot is; a worker without a slot has nothing to send.
    """
    if workers < 1:
        raise ValueError("a schedule is split over at least one worker")
    shares: list[list[PlannedRequest]] = [[] for _ in range(workers)]
    slots = schedule.concurrency
    for request, conversation in zip(schedule.requests, _conversations(schedule.requests), strict=True):
        dealt = conversation if slots is None else conversation % slots
        shares[dealt % workers].append(request)
    return [
        replace(
            schedule,
            prime=schedule.prime if worker == 0 else (),
            requests=tuple(requests),
            concurrency=None if slots is None else len(range(worker, slots, workers)),
        )
        for worker, requests in enumerate(shares)
    ]


def _conversations(requests: tuple[PlannedRequest, ...]) -> list[int]:
    """The conversation of each request, numbered from 0 by first request."""
    leader: dict[int, int] = {}

    def lead(id_: int) -> int:
        while leader[id_] != id_:
            leader[id_] = leader[leader[id_]]
            id_ = leader[id_]
        return id_

    first_of_session: dict[int, int] = {}
    for request in requests:
        leader.setdefault(request.id, request.id)
        relatives = [*request.waits_for]
        if request.continues is not None:
            relatives.append(request.continues)
        if request.session is not None:
            relatives.append(first_of_session.setdefault(request.session, request.id))
        for relative in relatives:
            leader.setdefault(relative, relative)
            leader[lead(request.id)] = lead(relative)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(lead(request.id), len(numbers)) for request in requests]
