"""What a fork server has done before it forks workers: imports, and loops that are compiled.

No backward runs in it: torch refuses one in a fork of a process that has run another.
"""

import torch._dynamo  # noqa: F401 - which the first optimizer imports

import psac
import psac.distributed.workers  # noqa: F401
from psac.gradients.kernels import loops as kernels
from psac.noise import loops as noise
from tests import private_runs  # noqa: F401

kernels.loops()
noise.compiled()
