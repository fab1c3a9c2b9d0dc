"""The picture shows the stored scores, each request once."""

import pytest

from kvlib.capstone import NUM_REQUESTS
from kvlib.show.drawings import find
from kvlib.show.drawings.capstone_board import scores


def test_every_request_is_counted_once() -> None:
    references, yours = scores()
    assert len(references) == 4 and len(yours) == 24
    for score in (*references, *yours.values()):
        assert score.good + score.stalled + score.late == NUM_REQUESTS


@pytest.mark.parametrize("options", list(scores()[1]))
def test_the_picture_shows_the_score_and_how_many_are_beaten(options: tuple) -> None:
    names = ("chunk", "watermark", "gives_up", "short_first")
    svg = find("capstone_board")(**dict(zip(names, options, strict=True)))
    references, yours = scores()
    mine = yours[options]
    beaten = sum(mine.goodput > each.goodput for each in references)
    assert f">{mine.goodput:.2f}<" in svg and f"Beats {beaten} of 4" in svg
    assert f"{mine.finished} of 64" in svg.replace("</text>", "")
