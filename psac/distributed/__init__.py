"""Several processes, one run: data parallel training with one law of noise at every world size.

In comes what one process would do: the draw of a step, and the weighted sums of the part of it that
this worker has computed.  Out goes what one process would have: the same sums on every worker, to
rounding, and the same noise on top, so that all models stay equal bit for bit.

    joining.py      finds the workers of this run: those of `torch.distributed`, or this process
    wrappers.py     what other libraries wrap a model in: unwrapped with a word, or refused
    group.py        what a run asks of its workers, and the answer of a process that is alone
    workers.py      the answer of several
    meeting.py      the one way to agree: all workers compare where they are, and what they know
    generators.py   one secret key, which all workers expand to the same draws and the same noise
    sums.py         sums over workers, in buckets
    sharded.py      parameters in shards on all workers: torch's FSDP2
    silence.py      no record meets another worker's: a loss function cannot talk to other workers

Guarantees, at every world size:

- Each record is in a step with the probability that is accounted, and enters one worker's sum.
- Noise of the size that the bound says is added once, to the sum of all workers.
- A step is in the ledger once, and written down by worker 0 before any worker has the sum.
- Workers that differ (in settings, step, ledger, draw, noise, parameters) stop, all of them, with
  one message that names what differs; so they do when one of them refuses.

Trust: workers see each other's exact sums and share the key of noise and draws, as processes of one
owner do.  What leaves them is as private as from one process.
"""

from psac.distributed.group import Alone, Group
from psac.distributed.joining import join
from psac.distributed.sharded import Whole, shards_of
from psac.distributed.wrappers import unwrapped

__all__ = ["Alone", "Group", "Whole", "join", "shards_of", "unwrapped"]
