import threading

import pytest

from dflash.importing.in_order import MOST_THREADS, in_order


def test_results_come_in_the_order_of_the_parts_and_few_parts_are_taken_ahead():
    taken = []

    def parts():
        for part in range(50):
            taken.append(part)
            yield part

    later = threading.Event()

    def work(part):
        if part == 0:
            later.wait(0.05)  # the first is the slowest
        return part * part

    for at, result in enumerate(in_order(parts(), work)):
        assert result == at * at
        assert len(taken) <= at + MOST_THREADS + 2


def test_an_error_of_the_work_reaches_who_asked():
    with pytest.raises(ZeroDivisionError):
        list(in_order([1, 0, 2], lambda part: 1 / part))
