"""What a model and a loss function reach is compared between steps, however it is kept."""

from __future__ import annotations

import pytest
from torch import nn

from psac.gradients.isolation.outside import Outside


class Settings:
    def __init__(self) -> None:
        self.scale, self.names = 1.5, ["a"]


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.5


class SlottedBelow(Slotted):
    """With attributes of its own beside the slot."""


class Hiding:
    """Whose `__dict__` is another one each time."""

    def __init__(self) -> None:
        object.__setattr__(self, "_store", {"scale": 1.5})

    @property
    def __dict__(self):
        return dict(object.__getattribute__(self, "_store"))


class Other(Settings):
    pass


def model_with(value):
    model = nn.Linear(2, 2)
    model.settings = value
    return model


def replace_attributes(value):
    value.__dict__ = {**value.__dict__, "scale": 2.5}


def reads(model, x):  # what code names is what may count
    return model.settings.scale, model.settings.names, model.settings.mean, model.scale


class Reader:
    """A part of the model whose code names what the function holds."""

    def __call__(self, settings):
        return settings.scale


CHANGES = {
    "an attribute": (Settings, lambda v: setattr(v, "scale", 2.5)),
    "one more attribute": (Settings, lambda v: setattr(v, "mean", 2.5)),
    "an attribute less": (Settings, lambda v: delattr(v, "scale")),
    "an entry of a list": (Settings, lambda v: v.names.append("b")),
    "all attributes": (Settings, replace_attributes),
    "the class": (Settings, lambda v: setattr(v, "__class__", Other)),
    "a slot": (Slotted, lambda v: setattr(v, "scale", 2.5)),
    "a slot of a base": (SlottedBelow, lambda v: setattr(v, "scale", 2.5)),
    "attributes that hide": (
        Hiding,
        lambda v: object.__getattribute__(v, "_store").update(scale=2.5),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name):
    make, change = CHANGES[name]
    value = make()
    model = model_with(value)
    outside = Outside(model)
    assert outside.changed(reads) == []
    outside.remember(reads)
    assert outside.changed(reads) == []
    change(value)
    assert outside.changed(reads) != []


def test_the_attributes_of_a_module_may_not_be_replaced_unnoticed():
    model = model_with(Settings())
    model.scale = 1.5
    outside = Outside(model)
    assert outside.changed(reads) == []
    replace_attributes(model)
    assert outside.changed(reads) == ["model.scale"]


def test_what_has_not_changed_is_compared_by_attributes_alone():
    outside = Outside(model_with(Settings()))
    outside.changed(reads)
    slower = [value for value, _ in outside._snapshots[None]._parts]
    assert not any(isinstance(value, Settings) for value in slower)


def test_what_the_model_names_counts_in_what_the_function_holds():
    settings, model = Settings(), nn.Linear(2, 2)
    model.reader = Reader()

    def loss(model, x):
        return model.reader(settings)

    outside = Outside(model)
    assert outside.changed(loss) == []
    settings.scale = 2.5
    assert outside.changed(loss) == ["loss (closure) settings.scale"]


def test_another_function_that_names_more_is_no_change_of_the_model():
    def first(model, x):
        return x

    outside = Outside(model_with(Settings()))
    outside.changed(first)
    outside.remember(first)
    assert outside.changed(reads) == ["another loss function"]
    outside.remember(reads)
    assert outside.changed(reads) == []


def test_attributes_that_no_code_names_may_change():
    model = model_with(Settings())
    outside = Outside(model)
    outside.changed(reads)
    outside.remember(reads)
    model.settings.counter = 0
    outside.changed(reads)
    outside.remember(reads)
    for number in range(1, 4):
        model.settings.counter = number  # a plain one, in place of another
        assert outside.changed(reads) == []
        outside.remember(reads)
