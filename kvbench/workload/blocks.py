"""The block structure of a schedule's prompts: which prompts share which leading whole blocks. No cache in here.

Counts in blocks of `block_tokens` tokens. Blocks are kept in runs, not singly: a prefix of 8,000 tokens is one run,
and a replay of 100,000 prompts takes as many steps as there are segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvbench.workload.schedule import PlannedRequest, Schedule

__all__ = ["BlockPaths", "RequestBlocks", "block_paths"]

Path = tuple[int, ...]
"""Runs from the first block on."""
_Step = tuple[int, int]
"""A branch of the tree of prompts, and how many of its tokens are taken."""


class RequestBlocks(NamedTuple):
    """One request in blocks."""

    request: PlannedRequest
    prompt_tokens: int
    prompt: Path
    """The whole blocks of the prompt."""
    sequence: Path
    """The whole blocks of the prompt and its output but the last token, whose KV is never computed."""
    sequence_tokens: int


@dataclass(frozen=True)
class BlockPaths:
    """Every request's path through the runs, in the order of sending. A path takes each of its runs whole."""

    run_blocks: tuple[int, ...]
    """Length of each run in blocks."""
    requests: tuple[RequestBlocks, ...]

    def leading(self, path: Path, held: Mapping[int, int]) -> int:
        """How many leading blocks of `path` are there, when of each run its first `held[run]` blocks are."""
        total = 0
        for run in path:
            there = held.get(run, 0)
            total += there
            if there < self.run_blocks[run]:
                break
        return total


def block_paths(schedule: Schedule, block_tokens: int) -> BlockPaths:
    """Two prompts share a block when their tokens are equal up to its end. Returned tokens count as planned (of an
    answer that is left after some tokens only those), and as different for every request.
    """
    tree = _Tree()
    steps = list(_steps(tree, schedule))
    layout = _Layout(tree, block_tokens)
    requests = tuple(
        RequestBlocks(
            request=request,
            prompt_tokens=tree.tokens(prompt),
            prompt=layout.path(prompt),
            sequence=layout.path(sequence),
            sequence_tokens=tree.tokens(sequence),
        )
        for request, (prompt, sequence) in zip(schedule.in_order(), steps, strict=True)
    )
    return BlockPaths(tuple(layout.run_blocks), requests)


def _steps(tree: _Tree, schedule: Schedule) -> Iterator[tuple[tuple[_Step, ...], tuple[_Step, ...]]]:
    """Prompt and sequence of every request as steps through the tree."""
    continued = {request.continues for request in schedule.requests}
    after: dict[int | None, tuple[_Step, ...]] = {None: ()}
    for request in schedule.in_order():
        prompt = after[request.continues] if request.carries else ()
        for segment in request.segments:
            prompt = tree.extend(prompt, segment.identity, segment.tokens)
        answer = -1 - request.id  # identities of contents are not negative
        if request.id in continued:
            after[request.id] = tree.extend(prompt, answer, request.returned_tokens)
        yield prompt, tree.extend(prompt, answer, request.returned_tokens - 1)


class _Tree:
    """All prompts of a schedule, merged where they begin alike."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Tokens before each branch."""
        self.lengths: list[set[int]] = []
        """After how many tokens of each branch some prompt goes on with other content, or ends."""
        self._nodes: dict[_Step, int] = {}
        self._branches: dict[tuple[int, int], int] = {}

    def extend(self, steps: tuple[_Step, ...], identity: int, tokens: int) -> tuple[_Step, ...]:
        """`steps` followed by `tokens` tokens of this content."""
        if tokens == 0:
            return steps
        node = self._nodes.setdefault(steps[-1], len(self._nodes) + 1) if steps else 0
        branch = self._branches.setdefault((node, identity), len(self._branches))
        if branch == len(self.starts):
            self.starts.append(self.tokens(steps))
            self.lengths.append(set())
        self.lengths[branch].add(tokens)
        return (*steps, (branch, tokens))

    def tokens(self, steps: tuple[_Step, ...]) -> int:
        """Tokens from the beginning of the prompt to the end of these steps."""
        return self.starts[steps[-1][0]] + steps[-1][1] if steps else 0


class _Layout:
    """Cuts every branch into runs where some prompt leaves it, so that whoever enters a run takes all of it.

    A block belongs to the run in which its last token lies.
    """

    def __init__(self, tree: _Tree, block_tokens: int) -> None:
        self.run_blocks: list[int] = []
        self._runs: dict[_Step, Path] = {}
        for branch, (start, lengths) in enumerate(zip(tree.starts, tree.lengths, strict=True)):
            runs: Path = ()
            before = start
            for tokens in sorted(lengths):
                blocks = (start + tokens) // block_tokens - before // block_tokens
                if blocks:
                    runs = (*runs, len(self.run_blocks))
                    self.run_blocks.append(blocks)
                self._runs[branch, tokens] = runs
                before = start + tokens

    def path(self, steps: tuple[_Step, ...]) -> Path:
        return tuple(run for step in steps for run in self._runs[step])
