import threading

from headrace.ingest.engine.gate import Gate


def test_a_second_thread_waits_for_its_turn_and_the_holder_is_named() -> None:
    gate = Gate()
    assert gate.holder() == "nobody is inside"
    assert gate.enter("next", 1.0)
    assert gate.mine
    seen: list[object] = []

    def other() -> None:
        seen.append(gate.mine)
        seen.append(gate.enter("reset", 0.01))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(10)
    assert seen == [False, False]
    assert gate.holder() == "thread 'MainThread' is in next()"
    gate.leave()
    assert not gate.mine


def test_a_waiting_thread_goes_in_when_the_owner_leaves() -> None:
    gate = Gate()
    assert gate.enter("next", 1.0)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(gate.enter("reset", 10.0)))
    thread.start()
    gate.leave()
    thread.join(10)
    assert seen == [True]
