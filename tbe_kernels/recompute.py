"""A lookup made again: activation checkpointing (`torch.utils.checkpoint`) runs forwards inside of a backward.

It has to give what the first one gave, and its bad ids have been counted.
"""

from __future__ import annotations

import copy

import torch

from tbe_kernels.tables import EmbeddingTables


def for_a_forward(tables: EmbeddingTables) -> EmbeddingTables:
    """The tables as a forward may use them: inside of a backward, with a count of bad ids that nobody reads.

    Raises RuntimeError if this backward has stepped the rows already, since another output would come out: where two
    lookups of the same tables, checkpointed each on its own, are in one backward.
    """
    backward = torch._C._current_graph_task_id()
    if backward == -1:
        return tables
    # A reentrant checkpoint steps in a backward of its own inside this one: a larger number.
    if tables.optimizer.row.steps and tables.last_backward >= backward:
        raise RuntimeError(
            "torch.utils.checkpoint: this lookup is made again in a backward that has stepped the same tables already, "
            "so other rows would come out; checkpoint both lookups as one, or call backward for each"
        )
    uncounted = copy.copy(tables)
    uncounted.bounds_check_warning = torch.zeros_like(tables.bounds_check_warning)
    return uncounted
