import threading

import pytest

from headrace.ingest.engine.gate import Gate


def enter(gate: Gate, doing: str, timeout_s: float, inside: "threading.Event", leave: "threading.Event") -> bool:
    """Whether this thread came in; it stays until `leave`."""

    def stay() -> bool:
        inside.set()
        return leave.wait(10)

    return gate.run(doing, timeout_s, stay, lambda: False)


def test_a_second_thread_waits_for_its_turn_and_the_holder_is_named() -> None:
    gate = Gate()
    assert gate.holder() == "nobody is inside"
    inside, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=enter, args=(gate, "next", 1.0, inside, leave), name="trainer")
    thread.start()
    assert inside.wait(10)
    assert not gate.mine
    assert gate.run("reset", 0.01, lambda: "in", gate.holder) == "thread 'trainer' is in next()"
    leave.set()
    assert gate.run("reset", 10.0, lambda: gate.mine, lambda: False)
    assert not gate.mine
    thread.join(10)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyboardInterrupt])
def test_it_is_open_again_after_an_error(error: type[BaseException]) -> None:
    gate = Gate()

    def fail() -> bool:
        raise error("inside")

    with pytest.raises(error, match="inside"):
        gate.run("next", 1.0, fail, lambda: False)
    assert not gate.mine
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(gate.run("next", 1.0, lambda: True, lambda: False)))
    thread.start()
    thread.join(10)
    assert seen == [True]
