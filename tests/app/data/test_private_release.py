"""Ranges and categories that are released with noise: their price, and what they are good for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import psac
from psac.accounting import Ledger, compose_noise
from psac.app.data import Budget, TensorRecords, from_table
from psac.app.data.tables import private_release as module
from psac.app.data.tables.cells import Cells
from psac.app.data.tables.private_release import (
    GRID,
    QUERIES,
    counts_below,
    noise_of,
    private_categories,
    private_range,
    release_columns,
    threshold,
)
from psac.app.training import Recipe, Run, train
from psac.app.training.run import RunError
from psac.noise.generators import SecureGenerator

WARDS = ["surgery", "cardiology", "maternity"]
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def patients(count: int = 3000) -> dict[str, list]:
    random = np.random.default_rng(0)
    age = random.normal(50, 10, count).tolist()
    ward = random.choice(WARDS, count).tolist()
    return {
        "age": [*age[:-1], None],
        "ward": ["leper colony", *ward[1:]],
        "back": ["yes" if x > 50 else "no" for x in age],
    }


SAID = {
    "label": "back",
    "classes": ["no", "yes"],
    "ranges": {"age": "private"},
    "categories": {"ward": "private"},
    "missing": {"age": "indicator"},
}


@pytest.fixture
def records() -> TensorRecords:
    found = from_table(patients(), **SAID, budget=BUDGET)
    assert isinstance(found, TensorRecords)
    return found


# ---- Sensitivity

cells = st.one_of(st.floats(allow_infinity=False), st.just(math.nan))


@given(st.lists(cells, max_size=20), cells)
def test_a_record_more_moves_each_count_below_by_one_at_most(values, one_more):
    before, after = (counts_below(np.array(each, float)) for each in (values, [*values, one_more]))
    assert len(before) == len(GRID)
    assert set(after - before) <= {0, 1}


def test_every_question_has_noise_for_a_sensitivity_of_one(monkeypatch):
    deviations, sizes = [], []

    def without_noise(tensors, *, std, generator):
        deviations.append(std)
        sizes.append(len(tensors[0]))

    monkeypatch.setattr(module, "add_noise_", without_noise)
    columns = {"a": np.arange(4000.0), "b": np.full(4000, np.nan)}
    words = {"w": Cells.of(["x"] * 4000)}
    found = release_columns(columns, words, BUDGET, 4000)
    assert sizes == [1] * (2 * QUERIES) + [1]
    paid = [entry.noise_multiplier for entry in found.ledger.entries for _ in range(entry.steps)]
    assert compose_noise(*deviations) == pytest.approx(compose_noise(*paid), rel=1e-9)


def test_a_unique_value_is_shown_as_rarely_as_its_delta_says():
    generator, noise, unique = SecureGenerator(), 4.0, 0.05
    column = Cells.of(["common"] * 1000 + ["unique"])
    shown = sum(
        "unique" in private_categories("w", column, noise, unique, generator) for _ in range(4000)
    )
    # 1e-9 on either side: a right build practically never fails
    low, high = (stats.binom.ppf(p, 4000, unique) for p in (1e-9, 1 - 1e-9))
    assert low <= shown <= high


def test_the_threshold_is_that_of_a_count_of_one():
    assert stats.norm.sf((threshold(3.0, 1e-6) - 1) / 3) == pytest.approx(1e-6, rel=1e-4)
    assert stats.norm.sf((threshold(3.0, 1e-6) - 1) / 3) <= 1e-6


# ---- The ledger


def test_a_release_is_in_the_ledger_before_its_noise_is_drawn(monkeypatch):
    story = []
    record, add_noise = Ledger.record, module.add_noise_

    def recorded(self, **entry):
        story.append(entry.get("what", ""))
        record(self, **entry)

    def noisy(*args, **kwargs):
        story.append("noise")
        add_noise(*args, **kwargs)

    monkeypatch.setattr(Ledger, "record", recorded)
    monkeypatch.setattr(module, "add_noise_", noisy)
    from_table(patients(), **SAID, budget=BUDGET)
    assert story[0].startswith("private ranges of 'age'")
    assert story[1].startswith("private categories of 'ward'")
    assert set(story[2:]) == {"noise"}


@pytest.mark.parametrize("ranges, categories", [(1, 0), (0, 2), (3, 2)])
@pytest.mark.parametrize("epsilon, delta", [(0.1, 1e-7), (1.0, 1e-5)])
def test_all_columns_together_cost_no_more_than_the_budget(ranges, categories, epsilon, delta):
    noise, unique = noise_of(Budget(epsilon=epsilon, delta=delta), ranges, categories)
    ledger = Ledger(secure=True)
    for count, chance in ((ranges, 0.0), (categories, unique)):
        if count:
            ledger.record(
                noise_multiplier=noise, sampling_rate=1.0, steps=count, what="x", delta=chance
            )
    assert 0.999 * epsilon < ledger.epsilon(delta) <= epsilon


def test_training_begins_with_the_release_and_keeps_the_whole_budget(records):
    assert records.released is not None
    plan = {"batch_size": 300, "steps": 20, "epsilon": 3.0, "delta": 1e-5}
    noises = []
    plain = torch.utils.data.TensorDataset(records.tensors[0].clone(), records.tensors[1])
    for data in (plain, records, torch.utils.data.DataLoader(records, batch_size=300)):
        model = torch.nn.Linear(records.tensors[0].shape[1], 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with psac.make_private(model, optimizer, data, **plan) as private:
            noises.append(private.noise_multiplier)
            assert private.planned_epsilon() <= 3.0
            assert private.planned_epsilon() > 2.999
            entries = () if data is plain else records.released.entries
            assert private.ledger.releases == entries
            assert private.ledger.steps == 0
            assert private.epsilon() == pytest.approx(
                records.released.epsilon(1e-5) if entries else 0.0
            )
    assert noises[0] < noises[1] == noises[2]


def test_reading_once_more_counts_once_more():
    budget = Budget(epsilon=1.0, delta=1e-6)
    records = from_table(patients(), **SAID, budget=budget)
    settings = {"batch_size": 300, "steps": 5, "noise_multiplier": 2.0, "delta": 1e-5}

    def private_run(data):
        model = torch.nn.Linear(records.tensors[0].shape[1], 2)
        return psac.make_private(
            model, torch.optim.SGD(model.parameters(), lr=1.0), data, **settings
        )

    with private_run(records) as first:
        state, spent = first.state_dict(), first.epsilon()
    with private_run(records) as same:
        same.load_state_dict(state)
        assert same.epsilon() == pytest.approx(spent)
    again = from_table(patients(), **SAID, budget=budget)
    with private_run(again) as other:
        other.load_state_dict(state)
        assert len(other.ledger.releases) == 4
        assert other.epsilon() > 1.2 * spent


def test_a_record_in_place_of_another_costs_more(records):
    assert records.released is not None
    model = torch.nn.Linear(records.tensors[0].shape[1], 2)
    with psac.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        records,
        sampling=psac.FixedSize(replacement=True),
        **{"batch_size": 300, "steps": 5, "noise_multiplier": 5.0, "delta": 1e-5},
    ) as private:
        assert {entry.relation for entry in private.ledger.entries} == {"replace-one"}
        assert private.epsilon() > 1.9 * records.released.epsilon(1e-5)


def test_a_seeded_release_is_not_secure():
    budget = Budget(epsilon=1.0, delta=1e-5, seed=1)
    first, same = (from_table(patients(), **SAID, budget=budget) for _ in range(2))
    assert first.released is not None
    assert not first.released.secure
    assert first.released == same.released
    assert first.columns == same.columns


# ---- What comes out


def test_ranges_hold_nearly_all_and_categories_the_frequent_ones(records, same_draws_each_time):
    found = from_table(patients(), **SAID, budget=BUDGET).columns
    low, high = found["age"].range
    assert 0 <= low < 30
    assert 70 < high < 130
    assert found["ward"].categories == tuple(sorted(WARDS))
    assert "leper colony" not in records.columns["ward"].categories


@pytest.mark.parametrize("scale, middle", [(1e-3, 0.0), (1.0, 2000.0), (1e6, 3e7), (0.0, 5.0)])
def test_ranges_of_any_magnitude_are_found(same_draws_each_time, scale, middle):
    values = np.random.default_rng(0).normal(middle, scale, 20_000)
    low, high = private_range(values, 5.0, SecureGenerator())
    assert low <= np.quantile(values, 0.01) + 1e-9
    assert high >= np.quantile(values, 0.99) - 1e-9
    assert high - low <= max(20 * scale, 0.02 * abs(middle))


def test_what_cannot_be_released_well_is_refused_before_it_costs():
    table = patients(200)
    with pytest.raises(ValueError, match=r"200 records are too few for private ranges"):
        from_table(table, **SAID, budget=BUDGET)
    words = {"ward": [f"w{k % 40}" for k in range(1000)], "back": ["no", "yes"] * 500}
    said = {"label": "back", "classes": ["no", "yes"], "categories": "private"}
    with pytest.raises(ValueError, match="no category of 'ward' is frequent enough"):
        from_table(words, **said, budget=Budget(epsilon=0.1, delta=1e-6))


# ---- Runs


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    rows = zip(*patients().values(), strict=True)
    lines = "".join(f"{'' if age is None else age},{ward},{back}\n" for age, ward, back in rows)
    (tmp_path / "patients.csv").write_text(f"age,ward,back\n{lines}")
    return Recipe(
        data=str(tmp_path / "patients.csv"),
        data_settings={**SAID, "privacy_share": 0.4},
        model="linear",
        validation_fraction=0.2,
        epsilon=3.0,
        delta=1e-5,
        batch_size=500,
        epochs=1,
        learning_rate=1.0,
    )


def test_a_run_releases_once_and_goes_on_with_what_it_released(tmp_path, recipe):
    run = train(recipe, tmp_path / "run")
    ledger, columns = run.ledger(), run.model_facts()["columns"]
    assert [entry.what.split(" (")[0] for entry in ledger.releases] == [
        "private ranges of 'age'",
        "private categories of 'ward'",
    ]
    assert 2.99 < ledger.epsilon(1e-5) <= 3.0
    assert run.summary()["epsilon"] == pytest.approx(ledger.epsilon(1e-5))
    assert "leper colony" not in str(columns)
    run.summary_path.unlink()
    again = train(recipe, tmp_path / "run", resume=True)
    assert again.ledger() == ledger
    assert again.model_facts()["columns"] == columns
    run.summary_path.unlink()
    run.released_path.unlink()
    with pytest.raises(RunError, match=r"released\.json is missing"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"privacy_share": None}, "State the share of the budget"),
        ({"privacy_share": 1.5}, "privacy_share is 1.5: allowed is"),
    ],
)
def test_a_run_says_what_share_its_release_may_cost(tmp_path, recipe, changes, message):
    import dataclasses

    changed = dataclasses.replace(recipe, data_settings={**recipe.data_settings, **changes})
    with pytest.raises(ValueError, match=message):
        train(changed, tmp_path / "run")
    plain = dataclasses.replace(recipe, epsilon=None, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="a share of epsilon, but the recipe has noise"):
        train(plain, tmp_path / "run")
    assert not Run(tmp_path / "run").started
