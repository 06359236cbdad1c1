"""The file that counts releases: appended to, by many processes, and never misread."""

from __future__ import annotations

import threading

import pytest

from psac.checkpoint.journal import Journal, run_of, spent_in, steps_in

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_a_journal_counts_totals_and_single_steps(tmp_path):
    place = tmp_path / "journal"
    journal = Journal(RUN)
    journal.keep_at(place, 5)
    journal(1)
    journal(3)
    journal.keep_at(place, 7)  # fewer than are known already
    assert place.read_text().split() == [RUN, "5", "+1", "+3", "7"]
    assert spent_in([place], RUN) == 9
    assert spent_in([place], OTHER) is None


def test_processes_that_begin_a_journal_at_once_are_all_counted(tmp_path):
    place, barrier = tmp_path / "folder" / "journal", threading.Barrier(8)

    def release() -> None:
        journal = Journal(RUN)
        barrier.wait()
        journal.keep_at(place, 0)
        for _ in range(50):
            journal(1)

    for _ in range(5):
        place.unlink(missing_ok=True)
        threads = [threading.Thread(target=release) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert spent_in([place], RUN) == 8 * 50


@pytest.mark.parametrize("content", ["", "\n", f"{OTHER}\n120\n", "\0\0\0\0", "12"])
def test_a_file_that_is_not_of_the_run_counts_nothing_and_is_begun_anew(tmp_path, content):
    place = tmp_path / "journal"
    place.write_text(content)
    assert spent_in([place], RUN) is None
    journal = Journal(RUN)
    journal.keep_at(place, 2)
    journal(1)
    assert run_of(place) == RUN
    assert spent_in([place], RUN) == 3


@pytest.mark.parametrize("line", ["1+1", "+", "++1", "", "\0\0", "one"])
def test_a_damaged_line_is_refused(tmp_path, line):
    place = tmp_path / "journal"
    place.write_text(f"{RUN}\n5\n{line}\n+1\n")
    with pytest.raises(ValueError, match=r"journal is damaged: .* number of steps"):
        steps_in(place)
