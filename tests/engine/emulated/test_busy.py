"""What a busy engine does and an idle one does not: it sees loads a step later, and host work prolongs steps."""

from __future__ import annotations

import pytest

from kvbench.engine.emulated.request import Request
from kvbench.engine.emulated.scheduler import EmulatedCore
from tests.engine.emulated.build import APART_S, a_core, a_profile, a_request, play

NOW_S = 4 * APART_S


def a_core_with_a_document_in_the_host(shared_cores: float = 0.0) -> EmulatedCore:
    """Document 0 has been pushed off the device."""
    profile = a_profile(30, 60)
    assert profile.engine.emulation is not None
    costs = profile.engine.emulation.costs.model_copy(update={"shared_cores": shared_cores})
    emulation = profile.engine.emulation.model_copy(update={"costs": costs})
    core = a_core(profile.model_copy(update={"engine": profile.engine.model_copy(update={"emulation": emulation})}))
    for number in range(4):
        play(core, [(number * APART_S, a_request(number, number))])
    return core


def promoted_beside_a_stream(core: EmulatedCore) -> tuple[Request, Request]:
    """The stream, and a request for document 0 that comes in the middle of its steps."""
    stream, request = a_request(8, 8, tokens=32, output=100), a_request(9, 0)
    play(core, [(NOW_S, stream), (NOW_S + 0.1, request)])
    assert request.host_tokens == 80
    return stream, request


def test_an_idle_engine_loads_and_computes_at_once() -> None:
    core, request = a_core_with_a_document_in_the_host(), a_request(9, 0)
    play(core, [(NOW_S, request)])
    assert request.host_tokens == 80
    load_s, compute_s = 5e-4 + 5 * 2.5e-4, 0.007 + 80 * 1.25e-4
    assert request.times[0] - NOW_S == pytest.approx(load_s + compute_s, rel=0.01)


def test_a_busy_engine_loads_after_the_step_that_found_it_and_sees_it_after_the_next() -> None:
    stream, request = promoted_beside_a_stream(a_core_with_a_document_in_the_host())
    between = [at_s for at_s in stream.times if request.arrived_s < at_s < request.times[0]]
    assert len(between) == 3, "the step under way, the one that finds it, the one beside which it is loaded"


def test_requests_prolong_a_step_on_the_same_cores_and_no_other() -> None:
    for shared, later_s in ((0.0, 0.0), (1.0, 0.004), (0.5, 0.002)):
        core = a_core_with_a_document_in_the_host(shared)
        core.submit(a_request(8, 8, tokens=32, output=100), NOW_S)
        core.advance(NOW_S + 0.1)
        due_s = core.next_s
        core.disturb(NOW_S + 0.1, 0.004)
        assert core.next_s == pytest.approx(due_s + later_s)
    idle = a_core_with_a_document_in_the_host(1.0)
    idle.disturb(NOW_S, 0.004)
    assert idle.next_s == float("inf")


def test_copies_prolong_the_steps_beside_them() -> None:
    ends_s = []
    for shared in (0.0, 1.0):
        stream, _ = promoted_beside_a_stream(a_core_with_a_document_in_the_host(shared))
        ends_s.append(stream.times[-1])
    moved_s = 5 * 2.5e-4 + 5 * 3.0e-4  # loaded, and what is computed behind it is stored
    assert ends_s[1] - ends_s[0] == pytest.approx(moved_s, rel=0.5)
