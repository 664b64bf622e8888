"""Faults planted in copies of `tbe_kernels`, at least one for each class of faults that such kernels really had."""

from tests.mutants.argument_faults import ARGUMENT_FAULTS
from tests.mutants.backward_faults import BACKWARD_FAULTS
from tests.mutants.counted_faults import COUNTED_FAULTS
from tests.mutants.forward_faults import FORWARD_FAULTS
from tests.mutants.optimizer_faults import OPTIMIZER_FAULTS
from tests.mutants.step_faults import STEP_FAULTS

FAULTS = (*FORWARD_FAULTS, *BACKWARD_FAULTS, *STEP_FAULTS, *OPTIMIZER_FAULTS, *COUNTED_FAULTS, *ARGUMENT_FAULTS)
