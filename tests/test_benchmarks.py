"""The benchmark's own arithmetic and files, on fake contestants: nothing here is timed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import contestants, memory, noise, plots, records, report, scaling, speed
from benchmarks.__main__ import parser
from benchmarks.workloads import WORKLOADS

CHEAP = ["cnn", "mlp"]


class FakeMachine:
    """A clock and steps that move it by a stated number of seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def step(self, name: str, seconds: float) -> speed.Run:
        def run() -> None:
            self.now += seconds
            self.order.append(name)

        return run


def fake_record(kind: str, name: str, **settings: Any) -> records.Record:
    """A record as a run would write it: psac cheap, ghost dear, hooks unable."""
    record = records.new_record(kind, name, settings={"batch_size": 512, **settings})
    error = {"status": "cannot run", "error": "NotImplementedError: no rule | for <this>"}
    if kind == "speed":
        times = {"ordinary": [1.0, 1.1, 1.2], "psac": [1.05, 1.1, 1.3], "opacus_ghost": [2.1] * 3}
        first = {"ordinary": 1.4, "psac": 4.2, "opacus_ghost": 2.1}
        figures = speed.with_first_steps(speed.summarise(times), first)
        record["contestants"] = {**figures, "opacus_hooks": error}
    else:
        figure = {"status": "ran", "first_mb": 11.0, "steady_mb": 11.0, "tensors_mb": 10.0}
        record["contestants"] = {
            "ordinary": {**figure, "ratio": 1.0},
            "psac": {**figure, "ratio": 1.1, "first_ratio": 1.6},
            "opacus_ghost": {**figure, "ratio": 3.0},
            "opacus_hooks": error,
        }
    return {**record, "title": WORKLOADS[name].title}


def fake_sweep() -> records.Record:
    def point(size: int) -> dict[str, Any]:
        time = {"status": "ran", "lower_quartile_seconds": size / 1000}
        used = {"status": "ran", "steady_mb": 2.0 * size}
        return {"size": size, "contestants": {"ordinary": {"time": time, "memory": used}}}

    points = [point(size) for size in (32, 64)]
    return {
        **records.new_record("scaling", "cnn-batch", settings={}),
        "title": "CNN",
        "axis": "batch_size",
        "points": points,
        "exponents": {"ordinary": scaling._exponents(points, "ordinary")},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("speed", "memory"):
        for name in CHEAP:
            records.save(tmp_path, fake_record(kind, name))
    records.save(tmp_path, fake_sweep())
    return tmp_path


def test_rounds_are_interleaved_and_shuffled_within_the_budget() -> None:
    machine = FakeMachine()
    runs = {name: machine.step(name, 1.0) for name in "abc"}
    times = speed.interleave(runs, budget_seconds=60, clock=machine.clock)
    rounds = [machine.order[i : i + 3] for i in range(3, len(machine.order), 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert {len(t) for t in times.values()} == {len(rounds)}
    assert 60 <= machine.now <= 70


def test_a_slow_contestant_joins_fewer_rounds_but_enough() -> None:
    machine = FakeMachine()
    runs = {"fast": machine.step("fast", 1.0), "slow": machine.step("slow", 40.0)}
    times = speed.interleave(runs, budget_seconds=1000, clock=machine.clock, min_runs=5)
    assert len(times["slow"]) >= 5
    assert len(times["fast"]) > 5 * len(times["slow"])


def test_a_run_of_several_steps_counts_as_one_and_tells_the_time_of_a_step() -> None:
    machine = FakeMachine()
    runs = {"a": machine.step("a", 1.0), "b": machine.step("b", 2.0)}
    steps = {"a": 4, "b": 2}
    times = speed.interleave(runs, budget_seconds=90, clock=machine.clock, steps=steps)
    assert (set(times["a"]), set(times["b"])) == ({1.0}, {2.0})
    assert machine.order[:8] == ["a"] * 5 + ["b"] * 3  # the first of a run is not timed
    assert 90 <= machine.now <= 115


def test_what_another_contestant_left_in_the_caches_is_not_timed() -> None:
    machine = FakeMachine()

    def step(name: str) -> speed.Run:
        def run() -> None:
            machine.now += 1.0 if machine.order[-1:] == [name] else 9.0
            machine.order.append(name)

        return run

    runs, steps = {"a": step("a"), "b": step("b")}, {"a": 4, "b": 2}
    times = speed.interleave(runs, budget_seconds=90, clock=machine.clock, steps=steps)
    assert set(times["a"] + times["b"]) == {1.0}


def test_every_contestant_gets_its_runs_even_without_a_budget() -> None:
    machine = FakeMachine()
    runs = {"fast": machine.step("fast", 1.0), "slow": machine.step("slow", 100.0)}
    times = speed.interleave(runs, budget_seconds=0, clock=machine.clock, min_runs=3)
    assert {name: len(t) for name, t in times.items()} == {"fast": 3, "slow": 3}


def test_the_figure_is_the_lower_quartile_and_its_ratio_to_the_ordinary_step() -> None:
    figures = speed.summarise({"ordinary": [1.0, 2.0, 3.0, 4.0, 5.0], "psac": [3.0] * 5})
    assert figures["ordinary"]["lower_quartile_seconds"] == 2.0
    assert figures["psac"]["ratio"] == 1.5
    assert figures["psac"]["low"] <= 1.5 <= figures["psac"]["high"]


def test_a_contestant_that_cannot_run_is_recorded_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> contestants.Step:
        raise NotImplementedError("no hook for this layer")

    monkeypatch.setitem(contestants.CONTESTANTS, "vmap", broken)
    workload = WORKLOADS["cnn"].resized(4)
    figures = speed.measure(workload, ["vmap", "ordinary"], seconds=0, min_runs=2)
    assert figures["vmap"]["status"] == "cannot run"
    assert "no hook for this layer" in figures["vmap"]["error"]
    assert len(figures["ordinary"]["seconds"]) == 2


def test_a_private_step_that_forgets_a_parameter_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(contestants.CONTESTANTS, "vmap", lambda *_: lambda batch: None)
    figures = speed.measure(WORKLOADS["cnn"].resized(4), ["vmap"], seconds=0)
    assert "did not change" in figures["vmap"]["error"]


@pytest.mark.parametrize("name", ["psac", "engine"])
def test_psac_takes_a_step_on_a_small_workload(name: str) -> None:
    workload = WORKLOADS["cnn"].resized(4)
    model, batch = workload.build(), workload.make_batch()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    contestants.CONTESTANTS[name](workload, model, len(batch))(batch)
    contestants.check_every_parameter_moved(model, before)
    assert all(p.grad is None for p in model.parameters())


def test_the_engine_alone_sums_clipped_gradients_without_noise() -> None:
    workload = WORKLOADS["cnn"].resized(4)
    models = [workload.build() for _ in range(2)]
    for model in models:
        contestants.engine(workload, model, 4)(workload.make_batch())
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["cnn", "mlp", "transformer"])
def test_a_workload_repeats_for_the_same_seed(name: str) -> None:
    workload = WORKLOADS[name].resized(2)
    losses = [workload.losses(workload.build(), workload.make_batch()) for _ in range(2)]
    assert losses[0].shape == (2,)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_the_sentences_are_seventy_percent_padding() -> None:
    mask = WORKLOADS["bert"].make_batch().inputs["attention_mask"]
    assert mask.float().mean().item() == pytest.approx(0.3, abs=0.005)


def test_a_record_names_versions_machine_settings_and_command() -> None:
    record = json.loads(json.dumps(fake_record("speed", "cnn", seed=3)))
    wanted = {"kind", "name", "key", "command", "date", "load_average", "source_digest"}
    assert wanted | {"environment", "settings", "contestants", "title"} == set(record)
    wanted = {"python", "torch", "opacus", "psac", "cpu", "threads", "cpu_count"}
    assert wanted <= set(record["environment"])
    assert record["settings"]["seed"] == 3


def test_only_an_equal_question_counts_as_measured(tmp_path: Path) -> None:
    record = fake_record("speed", "cnn", seconds=60)
    records.save(tmp_path, record)
    assert records.is_done(tmp_path, fake_record("speed", "cnn", seconds=60))
    assert not records.is_done(tmp_path, fake_record("speed", "cnn", seconds=5))
    assert not records.is_done(tmp_path, fake_record("speed", "mlp", seconds=60))


def test_the_table_is_made_from_the_files_and_keeps_who_cannot_run(folder: Path) -> None:
    page = report.markdown(folder)
    row = next(line for line in page.splitlines() if WORKLOADS["cnn"].title in line)
    assert "**1.02x**" in row  # 1.075 / 1.05
    assert "2.00x" in row
    assert "1.95x" in row  # Opacus' best over psac
    assert "cannot run [1]" in row
    assert "[1] NotImplementedError: no rule \\| for &lt;this>" in page
    assert "| exponent | 1.00 | 1.00 |" in page
    # 4.2 over the ordinary step's lower quartile, 1.05
    assert (
        "they take 4.0x to 4.0x the time of an ordinary step and 1.6x to 1.6x its memory." in page
    )


def test_the_caption_names_what_was_measured_on_another_machine(folder: Path) -> None:
    assert "another machine" not in report.markdown(folder)
    record = fake_record("speed", "mlp")
    record["environment"]["cpu"], record["date"] = "Abacus", "2000-01-01"
    records.save(folder, record)
    assert "Measured on another machine: speed mlp (Abacus)." in report.markdown(folder)


def test_an_empty_folder_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="python -m benchmarks speed"):
        report.markdown(tmp_path)


def test_the_readme_changes_only_between_the_markers() -> None:
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    block = f"{report.BEGIN}\nnew\n{report.END}"
    assert report.insert(text, block) == f"before\n{block}\nafter\n"
    assert report.insert("no markers", block) == "no markers"


def test_the_small_table_has_the_better_mode_of_opacus_and_who_cannot_run(folder: Path) -> None:
    record = fake_record("speed", "cnn")
    record["contestants"]["vmap"] = {"status": "cannot run", "error": "no"}
    records.save(folder, record)
    row = next(x for x in report.small_table(folder).splitlines() if WORKLOADS["cnn"].title in x)
    assert row.endswith("| 1050.0 ms | **1.02x** | 2.00x | cannot run | **1.10x** | 3.00x |")


def test_readme_and_page_are_filled_and_the_page_finds_its_picture(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    pictures = tmp_path / "docs" / "benchmarks"
    pictures.mkdir(parents=True)
    pages = [tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md"]
    for page in pages:
        page.write_text(f"{report.BEGIN}\n{report.END}\n")
    report.write(folder, root=tmp_path)
    assert {p.name for p in pictures.iterdir()} == {"bench-light.svg", "bench-dark.svg"}
    assert all(WORKLOADS["mlp"].title in page.read_text() for page in pages)
    assert "| exponent |" in pages[1].read_text()


def test_plots_come_in_light_and_dark_as_svg_and_png(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    written = {path.name for path in plots.write(folder)}
    stems = {f"{kind}-{theme}" for kind in ("bench", "scaling") for theme in ("light", "dark")}
    assert written == {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png")}


def test_memory_ratios_are_taken_to_the_ordinary_step() -> None:
    def run(size: float) -> dict[str, Any]:
        return {"status": "ran", "first_mb": size, "steady_mb": size, "tensors_mb": size}

    figures = {
        "ordinary": memory._summary([run(10.0), run(12.0)]),
        "psac": memory._summary([run(22.0)]),
        "vmap": memory._summary([run(1.0), {"status": "cannot run", "error": "killed"}]),
    }
    ratios = {name: f.get("ratio") for name, f in memory._with_ratios(figures).items()}
    assert ratios == {"ordinary": 1.0, "psac": 2.0, "vmap": None}


def test_the_peak_of_live_tensors_is_exact() -> None:
    def run() -> None:
        first = torch.ones(2**20)  # 4 MB
        second = first + 1  # 8 MB alive
        del first
        second + 1  # again 8

    assert memory._live_tensor_peak_mb(run) == pytest.approx(8.0, abs=0.01)


def test_the_command_line_is_what_the_docs_say() -> None:
    options = parser().parse_args(["speed", "--workloads", "cnn", "--quick", "--seconds", "5"])
    assert (options.task, options.workloads, options.quick) == ("speed", ["cnn"], True)
    assert parser().parse_args([]).task == "all"


def test_noise_is_measured_beside_plain_normals_and_put_in_words():
    record = {"settings": {"size": 1000}, **noise.measure(size=1000, seconds=0.01)}
    assert set(record["contestants"]) == set(noise.TITLES)
    assert record["contestants"]["psac"]["ratio"] > 0
    assert noise.sentence(record).startswith("Gaussian noise for 1,000 parameters: `torch.randn`")
