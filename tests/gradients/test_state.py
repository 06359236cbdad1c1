"""Nothing that a forward computed from samples stays in the model; what is harmless may."""

from __future__ import annotations

import warnings
from collections import deque

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import psac


class Writing(nn.Module):
    """A linear layer whose forward writes somewhere by `write`."""

    def __init__(self, write, **start):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        for name, value in start.items():
            if name.startswith("buffer"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)
        self.write = write

    def forward(self, x):
        scale = self.write(self, x)
        return self.layer(x) * (1.0 if scale is None else scale)


def moving_average(m, x):
    if m.training:
        m.buffer_mu = 0.5 * m.buffer_mu + 0.5 * x.detach().mean(0)


def moving_average_in_place(m, x):
    m.buffer_mu.mul_(0.5).add_(0.5 * x.detach().mean(0))


def moving_average_through_data(m, x):
    m.buffer_mu.data.mul_(0.5).add_(0.5 * x.detach().mean(0))


def moving_average_in_an_attribute(m, x):
    m.mu = 0.9 * m.mu + 0.1 * x.detach().mean(0)


def moving_average_in_a_number(m, x):
    m.mu = 0.9 * m.mu + 0.1 * float(x.detach().mean())


def late(m, x):
    m.count += 1
    if m.count > 5:
        m.buffer_mu.mul_(0.5).add_(0.5 * x.detach().mean(0))


def late_and_once(m, x):
    m.count += 1
    if m.count == 6:
        m.buffer_mu.copy_(x.detach().mean(0))


def started_from_the_first_batch(m, x):
    if not m.buffer_started:
        m.layer.bias.data.copy_(-m.layer(x).detach().mean(0))
        m.buffer_started.fill_(True)


def started_without_a_sign(m, x):
    if not m.__dict__.get("started"):
        with torch.no_grad():
            m.layer.bias.copy_(-m.layer(x).mean(0))
        m.started = True


def largest_so_far(m, x):
    m.buffer_mu = torch.maximum(m.buffer_mu, x.detach().amax(0))


def samples_seen(m, x):
    m.buffer_seen += len(x)


def state_of_the_last_batch(m, x):
    before, m.hidden = m.hidden, x.detach().mean()
    return 1.0 + before


def bank(m, x):
    m.bank.append(x.detach().mean(0))


def mean_in_a_dictionary(m, x):
    m.means["x"] = m.means["x"] * 0.5 + x.detach().mean(0)


WRITTEN = {
    "moving_average": (lambda: Writing(moving_average, buffer_mu=torch.zeros(4)), "buffer_mu"),
    "in_place": (lambda: Writing(moving_average_in_place, buffer_mu=torch.zeros(4)), "buffer_mu"),
    "through_data": (
        lambda: Writing(moving_average_through_data, buffer_mu=torch.zeros(4)),
        "buffer_mu",
    ),
    "attribute": (lambda: Writing(moving_average_in_an_attribute, mu=torch.zeros(4)), "mu"),
    "number": (lambda: Writing(moving_average_in_a_number, mu=0.0), "mu"),
    "late": (lambda: Writing(late, buffer_mu=torch.zeros(4), count=0), "buffer_mu"),
    "late_and_once": (
        lambda: Writing(late_and_once, buffer_mu=torch.zeros(4), count=0),
        "buffer_mu",
    ),
    "started_from_the_first_batch": (
        lambda: Writing(started_from_the_first_batch, buffer_started=torch.tensor(False)),
        r"parameter 'layer\.bias",
    ),
    "started_without_a_sign": (lambda: Writing(started_without_a_sign), r"layer\.bias"),
    "largest_so_far": (lambda: Writing(largest_so_far, buffer_mu=torch.zeros(4)), "buffer_mu"),
    "last_batch": (lambda: Writing(state_of_the_last_batch, hidden=torch.zeros(())), "hidden"),
    "bank": (lambda: Writing(bank, bank=[]), "bank"),
    "bank_of_the_last": (lambda: Writing(bank, bank=deque([torch.zeros(4)], maxlen=2)), "bank"),
    "dictionary": (lambda: Writing(mean_in_a_dictionary, means={"x": torch.zeros(4)}), "means"),
    "instance_norm": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (2, 2)),
            nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        r"1\.running_mean",
    ),
}  # fmt: skip


def state_of(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def trained(model, steps, n=5):
    """The engine over several batches, as a run has them."""
    torch.manual_seed(1)
    with psac.Engine(model) as engine:
        for _ in range(steps):
            F.cross_entropy(model(torch.randn(n, 4)), torch.randint(3, (n,))).backward()
            engine.collect()


@torch.no_grad()
def evaluated(model, times):
    for _ in range(times):
        model(torch.randn(5, 4))


def run_privately(model, *, after_forward=lambda x: None, after_step=lambda: None, **settings):
    """A short private run of the user's own loop; returns how many steps were released."""
    data = TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"batch_size": 5, "steps": 8, "noise_multiplier": 1.0, "delta": 1e-5} | settings
    with psac.make_private(model, optimizer, data, **settings) as private:
        for _ in range(2):
            for x, y in private.loader:
                loss = F.cross_entropy(model(x), y)
                after_forward(x)
                loss.backward()
                optimizer.step()
                after_step()
    return private.step


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_forward_keeps_of_its_samples_is_refused_and_put_back(name, n):
    make, place = WRITTEN[name]
    model = make()
    before = state_of(model)
    with pytest.raises(psac.PrivacyError, match=rf"computed from its samples.*{place}"):
        trained(model, 9, n)
    for key, value in state_of(model).items():
        torch.testing.assert_close(value, before[key])


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_refused_without_gradients_as_well(name):
    make, place = WRITTEN[name]
    model = make()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match=place):
        evaluated(model, 9)


def test_a_count_of_samples_is_refused():
    model = Writing(samples_seen, buffer_seen=torch.tensor(0))
    with pytest.raises(psac.PrivacyError, match="buffer_seen"):
        trained(model, 1)


@pytest.mark.parametrize("name", ["moving_average", "instance_norm"])
def test_statistics_are_refused_in_physical_batches_of_one(name):
    with pytest.raises(psac.PrivacyError, match="computed from its samples"):
        run_privately(WRITTEN[name][0](), physical_batch_size=1)


class Tokens(nn.Module):
    """Counts how often each token came."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.register_buffer("counts", torch.zeros(7))

    def forward(self, tokens):
        self.counts += torch.bincount(tokens.flatten(), minlength=7)
        return self.head(self.table(tokens).mean(1))


@pytest.mark.parametrize("tokens", [[[1, 5, 3]], [[2]], [[0]], [[1, 2], [2, 1], [1, 1]]])
def test_counts_of_tokens_are_refused(tokens):
    model = Tokens()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match="'counts'"):
        model(torch.tensor(tokens))
    assert bool((model.counts == 0).all())


def test_a_module_that_is_switched_to_training_later_is_noticed():
    model, x = WRITTEN["instance_norm"][0]().eval(), torch.randn(5, 4)
    with psac.Engine(model):
        for _ in range(3):
            model(x).square().sum(1).mean().backward()
        model[1].train()
        with pytest.raises(psac.PrivacyError, match=r"1\.running_mean"):
            model(x)


def test_batch_norm_in_training_mode_is_refused_without_gradients_too():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    with psac.Engine(model), torch.no_grad():
        model(torch.randn(5, 4))
        model.train()
        with pytest.raises(psac.NotIsolated, match="at '1'"):
            model(torch.randn(5, 4))
    assert bool((model[1].running_mean == 0).all())


def test_what_a_model_that_calls_itself_writes_is_seen():
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mu", torch.zeros(4))

        def forward(self, x, depth=1):
            if depth:
                self.mu = self.mu + x.detach().mean(0)
                with torch.no_grad():
                    self(x, depth - 1)
            return self.layer(x)

    model = Recursive()
    with psac.Engine(model), pytest.raises(psac.PrivacyError, match="'mu'"):
        model(torch.randn(5, 4)).sum().backward()


def test_a_forward_that_failed_does_not_blind_the_watch():
    model = Writing(late, buffer_mu=torch.zeros(4), count=0)
    with psac.Engine(model):
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.randn(5, 3))
        with pytest.raises(psac.PrivacyError, match="buffer_mu"):
            evaluated(model, 9)


# What is harmless
def counter(m, x):
    m.buffer_count += 1
    m.count += 1


def table_built_lazily(m, x):
    if m.table is None:
        m.table = torch.arange(4.0)
    return 1 + m.table[0]


def table_built_late(m, x):
    m.count += 1
    if m.count == 6:
        m.buffer_table[:2] = 1.0
    return 1 + m.buffer_table[3]


def table_for_the_batch(m, x):
    if m.table is None or len(m.table) != len(x):
        m.table = torch.ones(len(x), 1)
    return m.table


def map_to_look_at(m, x):
    m.map = m.layer(x).softmax(1)
    m.maps = [m.map, x]


def new_attribute(m, x):
    m.seen_last = x


def random_buffer(m, x):
    m.buffer_noise.normal_()
    m.mask = torch.rand(3) < 0.5


def weights_kept_positive(m, x):
    m.layer.weight.data.clamp_(min=0.0)


def average_of_the_weights(m, x):
    m.buffer_average = 0.9 * m.buffer_average + 0.1 * m.layer.weight.detach()


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))


HARMLESS = {
    "counter": lambda: Writing(counter, buffer_count=torch.tensor(0), count=0),
    "table_built_lazily": lambda: Writing(table_built_lazily, table=None),
    "table_built_late": lambda: Writing(table_built_late, buffer_table=torch.zeros(4), count=0),
    "table_for_the_batch": lambda: Writing(table_for_the_batch, table=None),
    "map_to_look_at": lambda: Writing(map_to_look_at, map=None, maps=[]),
    "new_attribute": lambda: Writing(new_attribute),
    "random_buffer": lambda: Writing(random_buffer, buffer_noise=torch.zeros(4)),
    "weights_kept_positive": lambda: Writing(weights_kept_positive),
    "average_of_the_weights": lambda: Writing(
        average_of_the_weights, buffer_average=torch.zeros(3, 4)
    ),
    "spectral_norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)
    ),
    "old_spectral_norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))),
    "old_weight_norm": old_weight_norm,
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)),
    "not_finite": lambda: Writing(lambda m, x: None, buffer_limits=torch.tensor([torch.nan, 1.0])),
    "sparse": lambda: Writing(lambda m, x: None, buffer_edges=torch.eye(3).to_sparse()),
}


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.filterwarnings("error")
def test_what_does_not_depend_on_samples_may_change(name, n):
    model = HARMLESS[name]()
    trained(model, 9, n)
    with psac.Engine(model), torch.no_grad():
        for mode in (True, False):
            model.train(mode)
            model(torch.randn(n, 4))


def test_the_watch_counts_no_forward_of_its_own():
    model = HARMLESS["counter"]()
    trained(model, 9)
    assert int(model.buffer_count) == model.count == 9


def test_the_watch_leaves_the_random_stream_as_it_was():
    draws = []
    for make in (HARMLESS["random_buffer"], HARMLESS["random_buffer"]):
        model, x = make(), torch.ones(5, 4)
        torch.manual_seed(3)
        if draws:
            with psac.Engine(model):
                model(x)
        else:
            model(x)
        draws.append((model.buffer_noise.clone(), torch.rand(3)))
    torch.testing.assert_close(draws[0], draws[1])


@pytest.mark.filterwarnings("error")
def test_weights_that_are_loaded_or_averaged_between_steps_are_the_users_own():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)

    def average():
        averaged.update_parameters(model)
        model.load_state_dict(averaged.module.state_dict())

    def anneal(x):
        model[1].eps *= 0.9

    assert run_privately(model, after_forward=anneal, after_step=average) == 8


def test_a_buffer_that_the_loop_writes_while_a_batch_is_out_is_announced():
    model = Writing(lambda m, x: None, buffer_mu=torch.zeros(4))

    def write(x):
        model.buffer_mu = 0.9 * model.buffer_mu + 0.1 * x.mean(0)

    with pytest.warns(psac.UnprotectedStateWarning, match="buffer_mu of Writing was written"):
        run_privately(model, after_forward=write)


@pytest.mark.filterwarnings("error")
def test_the_loop_over_samples_counts_one_forward():
    model = HARMLESS["counter"]()
    with psac.Engine(model, method="loop"):
        model(torch.randn(5, 4)).sum(1).mean().backward()
    assert int(model.buffer_count) == model.count == 1


def add_the_sum(m, x):
    m.buffer_mu += x.detach().sum(0)


def test_what_a_forward_without_samples_shows_is_not_believed():
    model = Writing(add_the_sum, buffer_mu=torch.zeros(4))
    with psac.Engine(model), torch.no_grad():
        for _ in range(2):
            model(torch.randn(0, 4))
        with pytest.raises(psac.PrivacyError, match="buffer_mu"):
            model(torch.randn(5, 4))


def test_a_forward_that_takes_no_other_values_is_judged_by_one_sample():
    def particular(m, x):
        if float(x.detach().min()) < 7:
            raise ValueError("other values")
        m.buffer_count += 1

    x = torch.full((5, 4), 7.0)
    model = Writing(particular, buffer_count=torch.tensor(0))
    with psac.Engine(model):
        model(x)
        with pytest.raises(psac.PrivacyError, match="fails on other samples"):
            model(x[:1])
