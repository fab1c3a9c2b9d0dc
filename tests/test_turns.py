"""Turns: the least key is found, however keys grow unseen."""

from hypothesis import given
from hypothesis import strategies as st

from kvlib.turns import Turns
from test_checks import found, table

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


def test_old_places_are_cleared_away_when_they_are_more_than_twice_the_names_and_eight():
    keys, turns = {"a": 0}, Turns(lambda name: keys[name])
    lengths = []
    for key in range(12):
        keys["a"] = -key
        turns.enter("a")
        lengths.append(len(turns._heap))
    assert lengths == [*range(1, 11), 1, 2]
    turns = Turns(str)
    for name in "abcdefghijkl":
        turns.enter(name)
    for left, name in zip(range(11, -1, -1), "lkjihgfedcba", strict=True):
        turns.leave(name)
        turns.check()
        assert len(turns) == left and (not left or turns.first() == "a")


@table(
    lost=(lambda t: t._heap.clear(), "the place of 'a' is not in the heap"),
    behind=(lambda t: (t._places.update(a=9), t._heap.append((9, "a"))), "'a' stands too far back"),
    old=(lambda t: t._heap.extend([(0, "z")] * 10), "old places pile up"),
)
def test_a_check_finds_what_is_wrong_with_a_place(spoil, named):
    turns = Turns({"a": 1}.get)
    turns.enter("a")
    found(turns, spoil, named)


def test_as_many_old_places_as_may_be_are_none_too_many():
    turns = Turns({"a": 1}.get)
    turns.enter("a")
    turns._heap.extend([(9, "z")] * 9)
    turns.check()
    assert turns.first() == "a"


def test_the_least_key_is_first_after_old_places_were_cleared_away():
    keys = {"a": 30, "b": 20, "c": 10}
    turns = Turns(keys.get)
    for name in keys:
        turns.enter(name)
    for keys["a"] in range(29, 15, -1):
        turns.enter("a")
        assert turns.first() == "c"


def test_a_place_that_is_good_enough_is_not_given_twice():
    keys = {"a": 1}
    turns = Turns(keys.get)
    for keys["a"] in (1, 1, 2):
        turns.enter("a")
        assert len(turns._heap) == 1
    turns.check()


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
