"""Who learns what: the right guess is told where the salt is off and the step beyond the ridge."""

import pytest

from kvlib.show.drawings import find
from kvlib.show.drawings.two_tenants import SECRET, Server, found, probes


@pytest.mark.parametrize("behind", [15, 79, 319])
def test_the_right_guess_is_told_and_with_salts_none_is(behind: int) -> None:
    assert found(probes(False, behind, 512)) == SECRET
    times = probes(True, behind, 512)
    assert found(times) is None and max(times) - min(times) < 1e-6


def test_a_short_step_hides_the_hit_in_the_time_of_the_weights() -> None:
    assert found(probes(False, 15, 0)) is None and found(probes(False, 319, 0)) == SECRET


def test_with_salts_the_times_do_not_depend_on_the_other_tenant() -> None:
    alone, after = Server(True), Server(True)
    after.ask("A", list(range(400)))
    assert after.ask("B", list(range(400))) == pytest.approx(alone.ask("B", list(range(400))))
    assert after.ask("B", list(range(400))) < 0.7 * alone.ask("C", list(range(400)))


def test_the_more_is_known_behind_the_secret_the_more_a_guess_tells() -> None:
    gains = [max(times) - min(times) for times in (probes(False, n, 512) for n in (15, 79, 319))]
    assert 4.5 < gains[1] / gains[0] < 5.5 and 19 < gains[2] / gains[0] < 21


def test_the_picture_tells_the_secret_once_its_guess_is_sent_and_never_with_salts() -> None:
    draw = find("two_tenants")
    assert "Guess 7 is faster by 2.1 ms" in draw(sent=8, salted=False)
    assert "Guess" not in draw(sent=7, salted=False)
    assert "Guess" not in draw(sent=10, salted=True)
