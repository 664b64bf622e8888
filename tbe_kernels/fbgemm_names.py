"""The methods that a module has beside constructor and forward, under FBGEMM's names: weights and state by table, and
what is set while training. Where they differ from `SplitTableBatchedEmbeddingBagsCodegen`, the room's README says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tbe_kernels.construction import integer
from tbe_kernels.tables import EmbeddingTables

#: What `update_hyper_parameters` calls the learning rate there.
LEARNING_RATE = "lr"
IDS = (torch.int32, torch.int64)


class FbgemmNames:
    """Mixed into `TableBatchedEmbeddingBags`, whose `tables` it works on."""

    @property
    def tables(self) -> EmbeddingTables:
        raise NotImplementedError

    def init_embedding_weights_uniform(self, low: float, high: float) -> None:
        """Fill every table with values uniform in [low, high)."""
        self.tables.weights.detach().uniform_(low, high)

    def split_embedding_weights(self) -> list[Tensor]:
        """Each table's weights `[E, D]`: views into `weights`, outside autograd."""
        layout, flat = self.tables.layout, self.tables.weights.detach()
        starts = layout.weights_offsets
        return [flat[starts[t] : starts[t + 1]].view(layout.rows[t], layout.dims[t]) for t in range(layout.num_tables)]

    def split_optimizer_states(self) -> list[tuple[Tensor, ...]]:
        """Each table's optimizer state, views: `momentum1`, then `momentum2`, where the optimizer has them; fp32 `[E]`
        where it is one number a row, `[E, D]` otherwise. An empty tuple a table where it has none."""
        layout, optimizer = self.tables.layout, self.tables.optimizer
        out = []
        for t in range(layout.num_tables):
            rows = slice(layout.table_row_offsets[t], layout.table_row_offsets[t + 1])
            elements = slice(layout.weights_offsets[t], layout.weights_offsets[t + 1])
            state = []
            for tensor, kind in (
                (optimizer.momentum1, optimizer.row.momentum1),
                (optimizer.momentum2, optimizer.row.momentum2),
            ):
                if tensor is not None:
                    by_row = kind == "row"
                    state.append(tensor[rows] if by_row else tensor[elements].view(layout.rows[t], layout.dims[t]))
            out.append(tuple(state))
        return out

    def get_optimizer_state(self) -> list[dict[str, Tensor]]:
        """`split_optimizer_states()` by the names of `torch.optim`: `sum`, or `exp_avg` and `exp_avg_sq`, or
        `momentum_buffer`."""
        names = self.tables.optimizer.row.state_names
        return [dict(zip(names, state, strict=True)) for state in self.split_optimizer_states()]

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of every later backward, without synchronising. Raises ValueError if it is negative."""
        self.tables.optimizer.set_learning_rate(learning_rate)

    def get_learning_rate(self) -> float:
        """The learning rate, an fp32 number. Waits for the device."""
        return float(self.tables.optimizer.hyper[0])

    def update_hyper_parameters(self, params_dict: Mapping[str, Any]) -> None:
        """Set hyper-parameters of every later backward by name, `lr` among them, without synchronising.

        Raises ValueError, and sets none of them, for a name that is no hyper-parameter or a value that the constructor
        would refuse.
        """
        values = {"learning_rate" if name == LEARNING_RATE else name: value for name, value in params_dict.items()}
        self.tables.optimizer.set_hyperparameters(values)

    def set_optimizer_step(self, step: int) -> None:
        """Set `iter`, the number of backward calls so far, without synchronising. Raises ValueError unless int64 holds
        it and it is not negative."""
        if not 0 <= integer("step", step) < 2**63:
            raise ValueError(f"step: expected an integer from 0 to 2**63 - 1, got {step}")
        self.tables.optimizer.iter.fill_(int(step))

    def reset_embedding_weight_momentum(
        self,
        pruned_indices: Tensor,
        pruned_indices_offsets: Tensor,
        logical_table_ids: Tensor,
        buffer_ids: Tensor,
    ) -> None:
        """Set pruned rows and their optimizer state to zero. Waits for the device.

        All four int32 or int64, one dimension, on any device. `pruned_indices` `[N]` are row numbers; buffer b holds
        those from `pruned_indices_offsets[b]` to `[b + 1]`. Entry i resets the rows of buffer `buffer_ids[i]` in the
        table of feature `logical_table_ids[i]`. Raises ValueError, and resets nothing, for what is not there.
        """
        layout = self.tables.layout
        given = {
            "pruned_indices": pruned_indices,
            "pruned_indices_offsets": pruned_indices_offsets,
            "logical_table_ids": logical_table_ids,
            "buffer_ids": buffer_ids,
        }
        for name, tensor in given.items():
            if not isinstance(tensor, Tensor) or tensor.dim() != 1 or tensor.dtype not in IDS:
                raise ValueError(f"{name}: expected a tensor of int32 or int64 with one dimension, got {tensor!r}")
        ends, features, buffers = (given[name].tolist() for name in list(given)[1:])
        if ends != sorted(ends) or (ends and not 0 <= ends[0] <= ends[-1] <= pruned_indices.numel()):
            raise ValueError(
                f"pruned_indices_offsets: expected places in pruned_indices that never go back, got {ends}"
            )
        if len(features) != len(buffers):
            raise ValueError(
                f"buffer_ids: expected one for each of the {len(features)} logical_table_ids, got {buffers}"
            )
        pruned = []
        for feature, buffer in zip(features, buffers, strict=True):
            if not 0 <= feature < layout.num_features:
                raise ValueError(f"logical_table_ids: expected features below {layout.num_features}, got {feature}")
            if not 0 <= buffer < len(ends) - 1:
                raise ValueError(f"buffer_ids: expected buffers below {len(ends) - 1}, got {buffer}")
            table = layout.feature_table_map[feature]
            rows = pruned_indices[ends[buffer] : ends[buffer + 1]].to(self.tables.weights.device, torch.int64)
            if not bool(((rows >= 0) & (rows < layout.rows[table])).all()):
                raise ValueError(
                    f"pruned_indices: expected rows below {layout.rows[table]}, those of feature {feature}, got "
                    f"{rows.tolist()}"
                )
            pruned.append((table, rows))
        weights, states = self.split_embedding_weights(), self.split_optimizer_states()
        for table, rows in pruned:
            for tensor in (weights[table], *states[table]):
                tensor[rows] = 0
