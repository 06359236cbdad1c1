import pytest

from psac.gradients import evaluate, recorder


@pytest.fixture(autouse=True)
def copies_are_let_go(monkeypatch):
    """Until psac does it by itself: the recorder's copies of parameters hold it, and it holds them.

    `test_copies_of_parameters_do_not_outlive_the_call` runs without this.
    """
    made = []

    class Recorder(recorder.Recorder):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            made.append(self)

    evaluated = evaluate.Vectorized._evaluate

    def letting_go(self, *given):
        try:
            return evaluated(self, *given)
        finally:
            while made:
                made.pop()._copies.clear()

    monkeypatch.setattr(evaluate, "Recorder", Recorder)
    monkeypatch.setattr(evaluate.Vectorized, "_evaluate", letting_go)
