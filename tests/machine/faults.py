"""Faults of the module around the kernels, a kind each, which the machine has to find: mends taken out, and likely
slips. `in_short`: those that are cheap to find, for every run; the rest is for the night."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.plant import Edit


@dataclass(frozen=True)
class StateFault:
    """Edits that make one fault, and the kind that it stands for."""

    name: str
    edits: tuple[Edit, ...]
    in_short: bool = True


def fault(name: str, file: str, old: str, new: str, in_short: bool = True) -> StateFault:
    """A fault of one edit."""
    return StateFault(name, (Edit(file, old, new),), in_short)


STATE_FAULTS = (
    # One owner of every tensor.
    fault(
        "weights that are put in place are not noticed",
        "module.py",
        'self._parameters.get("weights") is known.weights\n            and',
        "True\n            and",
    ),
    fault(
        "a momentum that is put in place is not noticed",
        "module.py",
        'and buffers.get("momentum1") is optimizer.momentum1',
        "and True",
    ),
    fault("a counter that is put in place is not noticed", "module.py", 'buffers["iter"] is optimizer.iter', "True"),
    fault(
        "a seed that is put in place is not noticed",
        "module.py",
        'and buffers["rounding_seed"] is known.rounding_seed',
        "and True",
        in_short=False,
    ),
    fault(
        "betas are copied where views are needed",
        "optimizers.py",
        "held = {name: self.hyper[n : n + 1] for",
        "held = {name: self.hyper[n : n + 1].clone() for",
        in_short=False,
    ),
    fault(
        "tensors put in place keep the views of those before",
        "optimizers.py",
        "            setattr(other, name, tensor)\n        other._look_into_hyper()",
        "            setattr(other, name, tensor)",
        in_short=False,
    ),
    fault(
        "bias corrections are made where nothing may be written later",
        "optimizers.py",
        "with torch.inference_mode(False):",
        "if True:",
        in_short=False,
    ),
    fault(
        "a load in place parts the tables from lookups under way",
        "module.py",
        "if any(held[name] is not tensor for name, tensor in known.items()):",
        "if True:",
        in_short=False,
    ),
    # Checkpoints.
    fault(
        "a checkpoint of another module is taken",
        "module.py",
        "[] if saved is None else differences(self._identity(), saved)",
        "[]",
    ),
    fault(
        "the identity of a part of a model is not looked for",
        "module.py",
        'state_dict.get(f"{prefix}_extra_state")',
        'state_dict.get("_extra_state")',
    ),
    fault(
        "a refused checkpoint is loaded all the same",
        "module.py",
        "{'; '.join(different)}\")\n            return\n",
        "{'; '.join(different)}\")\n",
    ),
    fault("pooling is no part of the identity", "identity.py", '        "pooling_mode": pooling_mode.name,\n', ""),
    fault(
        "the shape of tables is compared by its size alone",
        "identity.py",
        "            if here != there:",
        "            if here[0] * here[1] != there[0] * there[1]:",
        in_short=False,
    ),
    fault(
        "the bound of norms is the constructor's",
        "module.py",
        "self._take_tensors().optimizer.read_norm_bound()",
        "self._take_tensors()",
        in_short=False,
    ),
    fault(
        "the seed is no part of the state dict",
        "module.py",
        '            if name != "weights":\n                self.register_buffer(name, tensor)',
        '            if name != "weights":\n                self.register_buffer(name, tensor, "seed" not in name)',
    ),
    fault(
        "the identity is made on the default device",
        "identity.py",
        'dtype=torch.uint8, device="cpu")',
        "dtype=torch.uint8)",
    ),
    # Copies.
    fault("copies forget their knobs", "module.py", '"config": tables.config,', '"config": KernelConfig(),'),
    fault(
        "copies do not clip",
        "module.py",
        '"max_gradient": tables.max_gradient,',
        '"max_gradient": None,',
        in_short=False,
    ),
    fault(
        "copies round to nearest",
        "module.py",
        '"stochastic_rounding": tables.stochastic_rounding,',
        '"stochastic_rounding": False,',
        in_short=False,
    ),
    fault("copies forget the scale", "module.py", '            "gradient_scale": tables.gradient_scale,\n', ""),
    fault(
        "copies take their tables away from the original",
        "module.py",
        "self.__dict__.copy(), self.tables",
        "self.__dict__, self.tables",
    ),
    # Backwards.
    fault(
        "the gradient of the per-sample weights alone trains",
        "functional.py",
        "            if ctx.step is not None:\n                ctx.step.take = take\n",
        "            if ctx.step is not None:\n                take()\n",
    ),
    fault(
        "an output without a gradient is stepped",
        "functional.py",
        "        ctx.set_materialize_grads(False)\n        batch, output",
        "        batch, output",
    ),
    fault(
        "the weights that a forward saw are stepped though they are frozen since",
        "functional.py",
        "ctx.needs_input_grad[0] and tables.weights.requires_grad:",
        "ctx.needs_input_grad[0]:",
    ),
    fault(
        "per-sample weights learn from the rows behind the step",
        "functional.py",
        "            if ctx.step is not None:\n                ctx.step.take = take\n"
        "                return grad_output, psw_gradient,"
        " None, None, None, None\n            take()\n",
        "            take()\n            if ctx.needs_input_grad[1]:\n"
        "                psw_gradient = gradient_of_per_sample_weights(tables, batch, grad_output)\n",
    ),
    fault(
        "determinism is asked for behind the count",
        "functional.py",
        "    merge = tables.config.merge  # raises now, before anything is changed, as this does:\n",
        "    tables.optimizer.advance()\n    merge = tables.config.merge\n    tables.optimizer.iter -= 1\n",
    ),
    fault(
        "determinism is asked for once",
        "config.py",
        "        deterministic = torch.are_deterministic_algorithms_enabled()\n",
        "        deterministic = torch.are_deterministic_algorithms_enabled() and False\n",
    ),
    fault(
        "a warning is an error",
        "config.py",
        "if not torch.is_deterministic_algorithms_warn_only_enabled():",
        "if True:",
        in_short=False,
    ),
    fault(
        "the step goes along where per-sample weights have been computed",
        "functional.py",
        "            if ctx.step is not None:\n                ctx.step.take = take\n",
        "            if ctx.step is not None and not ctx.next_functions[1][0].next_functions:\n"
        "                ctx.step.take = take\n",
    ),
    fault(
        "row gradients that were left go with a load",
        "module.py",
        "        self._take_tensors().optimizer.read_norm_bound()\n",
        "        self._take_tensors().optimizer.read_norm_bound()\n        self._tables.row_gradients = None\n",
    ),
    fault("the step is counted twice", "optimizers.py", "        self.iter += 1\n", "        self.iter += 2\n"),
    fault(
        "a lookup that is made again counts its bad ids again",
        "recompute.py",
        "uncounted.bounds_check_warning = torch.zeros_like(tables.bounds_check_warning)",
        "uncounted.bounds_check_warning = tables.bounds_check_warning",
        in_short=False,
    ),
    fault("an overflow is counted", "scaling.py", "tables.optimizer.iter += keep.to(torch.int64) - 1", "pass"),
    # Settings and refusals.
    fault(
        "the learning rate never changes",
        "optimizers.py",
        "self.hyper[:1].fill_(learning_rate)",
        "self.hyper[:1].add_(learning_rate * (self.hyper[0] == 0))",
    ),
    fault(
        "hyper-parameters before a wrong one are set",
        "optimizers.py",
        "        numbers = self._checked(values)\n        for place",
        '        self.hyper[:1].fill_(float(values.get("learning_rate", self.hyper[0])))\n'
        "        numbers = self._checked(values)\n        for place",
    ),
    fault(
        "a bound of norms that is set later is not kept",
        "optimizers.py",
        '            self.bounds_norms = numbers["max_norm"] > 0\n            self._look_into_hyper()',
        '            self.bounds_norms = numbers["max_norm"] > 0',
        in_short=False,
    ),
    fault("half() is obeyed", "module.py", "if moved.dtype != self.weights.dtype or", "if", in_short=False),
    # Caches that modules share.
    fault(
        "modules with other buckets share the bags of a variable batch",
        "batch.py",
        "@functools.lru_cache(maxsize=64)\ndef _variable_bags(",
        "_shared: dict[object, BagLayout] = {}\n\n\n"
        "def _variable_bags(layout: TableLayout, sizes: object, device: torch.device) -> BagLayout:\n"
        "    key = (layout.rows, layout.dims, layout.feature_table_map, sizes)\n"
        "    if key not in _shared:\n"
        "        _shared[key] = _new_variable_bags(layout, sizes, device)\n"
        "    return _shared[key]\n\n\n"
        "def _new_variable_bags(",
        in_short=False,
    ),
)
