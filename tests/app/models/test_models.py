"""Every network by its name: shapes, sizes, and samples that do not mix."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import psac
from psac.app import models


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """These networks are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def resnet9_parameters(channels: int, w: int) -> int:
    pairs = [(channels, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 4 * w)]
    pairs += [(2 * w, 2 * w)] * 2 + [(4 * w, 4 * w)] * 2
    convolutions = sum(9 * inputs * outputs for inputs, outputs in pairs)
    norms = 2 * (sum(outputs for _, outputs in pairs) + 2 * w + 4 * w)
    return convolutions + norms + 16 * w * 10 + 10


# Those that take text are tested in tests/app/text.
OF_NUMBERS = [name for name in models.names() if not models.takes_text(name)]
# name, settings, input shape, parameters for 10 classes
CASES = [
    ("cnn", {}, (1, 28, 28), 26_010),
    ("cnn", {}, (3, 32, 32), 37_274),
    ("cnn", {}, (1, 16, 20), 11_674),
    ("linear", {}, (1, 8, 8), 650),
    ("linear", {}, (64,), 650),
    ("mlp", {}, (1, 8, 8), 64 * 128 + 128 + 1290),
    ("mlp", {"hidden": [20, 5]}, (64,), 64 * 20 + 20 + 105 + 60),
    ("mlp", {"hidden": []}, (64,), 650),
    ("resnet9", {"width": 4}, (3, 32, 32), resnet9_parameters(3, 4)),
    ("resnet9", {"width": 4}, (3, 160, 160), resnet9_parameters(3, 4)),
    ("resnet9", {"width": 5}, (1, 16, 16), resnet9_parameters(1, 5)),
]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "settings", "shape", "parameters"), CASES)
def test_scores_have_the_stated_shape_and_depend_on_their_own_sample(
    name, settings, shape, parameters
):
    torch.manual_seed(0)
    model = models.build(name, input_shape=shape, classes=10, **settings)
    x = torch.randn(3, *shape)
    scores = model(x)
    assert scores.shape == (3, 10)
    assert count(model) == parameters
    assert not list(model.buffers())
    torch.testing.assert_close(model(x[1:2]), scores[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::psac.InsecureNoiseWarning")
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_the_engine_takes_every_network_as_it_is(name):
    settings, shape = {"width": 2} if name == "resnet9" else {}, (1, 16, 16)
    model = models.build(name, input_shape=shape, classes=10, **settings)
    data = TensorDataset(torch.randn(3, *shape), torch.arange(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = psac.make_private(
        model, optimizer, data, batch_size=3, steps=1, noise_multiplier=0.0, seed=0
    )
    for batch in private.loader:  # a slow path would warn, and a warning is an error
        private.step(lambda m, x, y: F.cross_entropy(m(x), y), batch)
    assert private.steps_taken == 1


def test_every_network_is_in_the_table():
    assert {name for name, *_ in CASES} == set(OF_NUMBERS)


def test_resnet9_at_the_width_of_its_paper_has_2_4_million_parameters():
    model = models.build("resnet9", input_shape=(3, 32, 32), classes=10)
    assert 2.4e6 < count(model) < 2.5e6
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 8 + 2  # one for each convolution, one for each sum
    assert {norm.num_groups for norm in norms} == {32}


def test_unknown_names_and_settings_list_the_known_ones():
    with pytest.raises(
        ValueError, match=r"'resnet' is unknown\. Known: cnn, linear, minilm, mlp, mpnet, resnet9"
    ):
        models.build("resnet", input_shape=(3, 32, 32), classes=10)
    with pytest.raises(ValueError, match=r"resnet9 setting 'widht'.*Did you mean 'width'"):
        models.build("resnet9", input_shape=(3, 32, 32), classes=10, widht=8)
    with pytest.raises(ValueError, match=r"cnn setting 'width' is unknown\. Known: none"):
        models.build("cnn", input_shape=(1, 28, 28), classes=10, width=8)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "settings", "message"),
    [
        ("cnn", (1, 8, 8), 10, {}, "16 pixels a side or more"),
        ("cnn", (64,), 10, {}, r"inputs of shape \(64,\)"),
        ("resnet9", (3, 15, 32), 10, {}, "16 pixels a side or more"),
        ("resnet9", (3, 32, 32), 10, {"width": 0}, "width=0"),
        ("mlp", (64,), 10, {"hidden": [0]}, r"hidden=\[0\]"),
        ("mlp", (64,), 10, {"hidden": 128}, "such as"),
        ("linear", (), 10, {}, "without the batch"),
        ("linear", (64,), 1, {}, "at least 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(name, shape, classes, settings, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, input_shape=shape, classes=classes, **settings)


def test_logistic_regression_starts_at_zero():
    model = models.build("linear", input_shape=(4,), classes=3)
    assert all(bool((p == 0).all()) for p in model.parameters())
