"""What an engine refuses before anything waits for it, and what just passes."""

import pytest

from kvlib.engine_refusals import require_owner, require_request, require_token


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: require_request([0], 1, 1, 0.0, 2), ValueError, "deadline_s must be above 0"),
        (lambda: require_owner(5, 0, []), TypeError, "a tenant must be a text, got 5"),
        (lambda: require_owner("", 0.5, []), TypeError, "priority must be a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_what_just_makes_sense_is_taken():
    require_request([0, 1], 1, 1, 0.5, 2)
    require_token(0, 1)
    assert require_owner("", -1, [0, 3]) == {0, 3}
    for token in (-1, 2):
        with pytest.raises(ValueError, match=r"token 1 of the prompt is outside .* \[0, 2\)"):
            require_request([0, token], 1, 1, None, 2)
