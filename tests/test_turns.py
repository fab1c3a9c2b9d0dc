"""Turns: the least key is found, however keys grow unseen."""

from hypothesis import given
from hypothesis import strategies as st

from kvlib.turns import Turns

DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "grow", "shrink"]),
        st.sampled_from("abcde"),
        st.integers(0, 9),
    ),
    max_size=80,
)


@given(DEEDS)
def test_the_first_is_the_name_of_the_least_key(deeds):
    keys = {name: (0, name) for name in "abcde"}
    turns, inside = Turns(keys.get), set()
    for deed, name, by in deeds:
        if deed == "leave" and name in inside:
            inside.remove(name)
            turns.leave(name)
        elif deed == "grow":
            keys[name] = (keys[name][0] + by, name)
        elif deed != "leave":
            keys[name] = (keys[name][0] - by * (deed == "shrink"), name)
            inside.add(name)
            turns.enter(name)
        turns.check()
        if inside:
            assert turns.first() == min(inside, key=keys.get)
            turns.check()
        assert len(turns) == len(inside)


def test_old_places_do_not_pile_up():
    keys = {"a": 0, "b": -1e9}
    turns = Turns(keys.get)
    turns.enter("b")
    for key in range(1000):
        keys["a"] = -key
        turns.enter("a")
        turns.check()
    assert turns.first() == "b"


def test_the_order_survives_that_old_places_are_cleared_away():
    keys = dict.fromkeys("abcdefghijkl", 0)
    turns = Turns(lambda name: (keys[name], name))
    for round_ in range(30):
        for shift, name in enumerate(keys):
            keys[name] = -round_ * 12 - (shift * 5 + round_) % 12
            turns.enter(name)
    due = []
    while len(turns):
        due.append(turns.first())
        turns.leave(due[-1])
    assert due == sorted(keys, key=keys.get)


def test_a_key_that_grew_is_looked_at_only_at_the_top():
    looked = []
    turns = Turns(lambda name: looked.append(name) or {"a": 1, "b": 2, "c": 3}[name])
    for name in "abc":
        turns.enter(name)
    looked.clear()
    assert turns.first() == "a"
    assert looked == ["a"]
