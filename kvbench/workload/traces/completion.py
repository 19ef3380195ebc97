"""Makes the id lists of a trace name exactly the blocks of its prompts, and coarser ones where asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvbench.errors import InputError, Where
from kvbench.workload.traces.trace import Trace, Whole

__all__ = ["coarser", "completed"]


def completed(trace: Trace) -> Trace:
    """Ids beyond a prompt's end are dropped, and whole blocks that no id names get an id of their own.

    Afterwards every request names all of its whole blocks, and its partial last block where the file did.
    """
    size = trace.block_tokens or 1
    counts = np.diff(trace.offsets)
    whole = trace.input_tokens // size
    if bool(np.all((counts == whole) | (counts == -(-trace.input_tokens // size)))):
        return trace
    unnamed = int(trace.blocks.max(initial=-1)) + 1
    lists: list[Whole] = []
    for index, count in enumerate(np.maximum(counts, whole)):
        ids = trace.ids(index)[: -(-int(trace.input_tokens[index]) // size)]
        missing = int(count) - len(ids) if count == whole[index] else 0
        lists.append(np.concatenate((ids, np.arange(unnamed, unnamed + max(0, missing)))))
        unnamed += max(0, missing)
    return _with_lists(trace, lists, size)


def coarser(trace: Trace, factor: int) -> Trace:
    """Blocks of `factor` blocks, each known by its last one; what is left over at the end is named by none.

    InputError unless every id stands for all before it: then the last one does not tell the whole group.
    """
    if factor == 1:
        return trace
    if not trace.is_chained():
        raise InputError(
            "at this scale a block is smaller than a token, and blocks cannot be taken together, since ids of this "
            "trace do not stand for what comes before them",
            where=Where(trace.path),
            do=f"use a scale of at least {1 / (trace.block_tokens or 1):.4f}",
        )
    size = (trace.block_tokens or 1) * factor
    whole = trace.input_tokens // size
    lists = [trace.ids(index)[factor - 1 :: factor][: whole[index]] for index in range(len(trace))]
    return _with_lists(trace, lists, size)


def _with_lists(trace: Trace, lists: list[Whole], size: int) -> Trace:
    return replace(
        trace,
        block_tokens=size,
        tree=None,
        listed=np.concatenate(lists),
        offsets=np.concatenate(([0], np.cumsum([len(ids) for ids in lists]))),
    )
