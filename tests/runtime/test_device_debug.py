"""The debug block's words, as the host writes and reads them."""

from tilelink.device import debug


def test_an_armed_block_reports_nothing() -> None:
    words = debug.armed(0.25)
    assert (len(words), words[debug.BUDGET]) == (debug.WORDS, 250_000_000)
    assert debug.trip(words) is None


def test_a_tripped_block_names_the_wait() -> None:
    words = [1, 1, 2, 3, 4, -5, 6, 7]
    assert debug.trip(words) == debug.Trip(stage=2, tile=3, channel=4, seen=-5, expected=6, program=7)
