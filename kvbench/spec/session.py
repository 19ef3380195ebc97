"""What a class's users do beyond sending turn after turn: start sub-agents, compact their context, leave early."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from kvbench.spec.lengths import Length, Think, Tokens
from kvbench.spec.model import Misfit, SpecModel
from kvbench.spec.quantity import Fraction

__all__ = ["Abort", "Branch", "Compact"]

Share = Annotated[Fraction, Field(gt=0)]


class Branch(SpecModel):
    """Sub-agents: after a `share` of the turns that another turn follows, `count` side branches start at once.

    Each goes on from that turn's prompt and answer, has `turns` requests of its own (each carries those before it)
    and runs beside the others. With `wait` the session's next turn waits until all of them are over, well or not,
    and then for its think time; without, it comes as if there were none. What a branch answers does not enter the
    session's context: the next turn's suffix stands for what it reports. Lengths are the class's unless given here;
    there is no think time between a branch's turns unless given here (`think_scale` applies).
    """

    share: Share
    count: Length = 1
    turns: Length = 1
    suffix_tokens: Length | None = None
    output_tokens: Length | None = None
    think: Think | None = None
    wait: bool = True


class Compact(SpecModel):
    """The context is rewritten: once a session's prompt and answer together exceed `after_tokens`, its next turn
    begins with a new context of `to_tokens` instead, of which only the class's prefix is the old one; the rest is
    new content (the summary), and then comes the turn's own suffix. The call that would write the summary is not
    played. Lengths as planned decide, so that it happens at the same turn in every arm. Side branches are not
    compacted.
    """

    after_tokens: Tokens
    to_tokens: Tokens

    @model_validator(mode="after")
    def _shorter(self) -> Compact:
        if self.to_tokens >= self.after_tokens:
            raise Misfit(
                (("to_tokens",), f"the new context must be shorter than after_tokens, {self.after_tokens}")
            )
        return self


class Abort(SpecModel):
    """The user leaves a `share` of the answers before their end: after so many tokens, or `after` so long since the
    intended time (not scaled by `think_scale`). The connection is closed. What is over by then is an ordinary
    answer.

    Such a request has the status `aborted`: it was offered, is no error and no length fault. Its TTFT counts when
    its first token came. Of one that left without a token it is known only that it is at least as long as the user
    waited: where so many left that the quantile of a rule depends on them, the rule is decided only if both that
    wait and the request time-out in their place say the same (so `after` should lie well beyond the TTFT that is
    judged). It has no E2E, TPOT or ITL and adds nothing to goodput and throughput. As users leave the slow answers,
    E2E, TPOT, ITL and what hits were worth are told of requests whose users were to stay, the same ones in every
    arm. The engine's counters include it, while identities of prompt tokens cover completed requests. A session
    goes on after its think time with what was received. Prompts that are sent again for parity, and side branches,
    are never left early.
    """

    share: Share
    after_tokens: Length | None = None
    after: Think | None = None

    @model_validator(mode="after")
    def _one_moment(self) -> Abort:
        if (self.after_tokens is None) == (self.after is None):
            raise Misfit(((), "give one of after_tokens: N and after: TIME"))
        return self
