"""The tests: `kernels/` puts the kernels under the suite, `suite/` tests the suite itself, `mutants/` holds faults."""

import os

# Tests run in processes, so a process gets one thread. Before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
