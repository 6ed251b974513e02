"""One at a time, in order."""

import threading
import time

from fdt.service.turns import Turns


def test_callers_have_their_turns_in_the_order_in_which_they_came():
    turns, order, asked = Turns(), [], []

    def caller(number):
        with turns.turn(lambda: True) as mine:
            order.append((number, mine))

    threads = []
    with turns.turn(lambda: True) as mine:
        assert mine and turns.taken
        for number in range(5):
            threads.append(threading.Thread(target=caller, args=[number]))
            threads[-1].start()
            deadline = time.monotonic() + 60
            while len(turns._waiting) < number + 2:
                assert time.monotonic() < deadline
        with turns.turn(lambda: bool(asked.append(1)) or len(asked) < 2) as mine:
            assert not mine, "it has given up"
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == [(number, True) for number in range(5)] and not turns.taken
