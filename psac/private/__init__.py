"""Algorithm 1 around the user's own model and optimizer.

    private = psac.make_private(model, optimizer, dataset, batch_size=512, epochs=10,
                                epsilon=3.0, delta=1e-5)

    def loss(model, x, y):               # ordinary code, given a batch of ONE record
        return F.cross_entropy(model(x), y)

    for batch in private.loader:
        private.step(loss, batch)
    print(private.epsilon())

One logical step releases

    (sum over the sampled records of weight * gradient  +  N(0, (noise_multiplier * bound)^2)) / B

where B is the expected batch size, a public constant: never the number that was drawn.

    making.py     make_private: from the user's arguments to a run
    run.py        Private: `step` and `release` are Algorithm 1
    handed.py     no batch but the loader's, always arranged alike
    guard.py      nothing but the released gradient moves the model
    scale.py      the scale that AdaptivePSAC learns
    facts.py      what all workers of a run must have alike
    account.py    what was spent, and what this process knows of it
    resume.py     the state of a run, and going on from it

Not covered: the number of records, the choice of settings (`psac.tuned_epsilon` prices tuning),
other uses of the data, and what the user shows of losses, norms and samples.
"""

from psac.private.making import make_private
from psac.private.run import Private

__all__ = ["Private", "make_private"]
