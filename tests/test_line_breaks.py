"""Where lines of the built pages break, and where they do not."""

import pytest

import built_book

with_breaks = built_book.extension("line_breaks").with_breaks


@pytest.mark.parametrize(
    "text",
    [
        "<p>7 % of 12 GiB</p>",
        "<li>in 0.6 s</li>",
        "<p>8 h</p>",
        "<td>3.35 TB/s and 989 TFLOP/s</td>",
    ],
)
def test_a_number_keeps_its_unit(text):
    once = with_breaks(text)
    assert once != text and with_breaks(once) == once
    assert once.replace("\N{NO-BREAK SPACE}", " ") == text
    assert once.count("\N{NO-BREAK SPACE}") == (2 if " and " in text or " of " in text else 1)


@pytest.mark.parametrize(
    "text",
    [
        "<pre>7 % of 12 GiB</pre>",
        '<a title="12 GiB">memory</a>',
        "<p>2 heads, 3 more, 4 sheets</p>",
        "<svg><text>12 GiB</text></svg>",
        "<head><title>80 GB</title></head>",
    ],
)
def test_what_is_no_number_with_a_unit_in_a_text_stays(text):
    assert with_breaks(text) == text


def test_a_table_breaks_names_and_digests_at_marks_and_touches_no_tag():
    digest, quarter = "0123456789abcdef" * 4, "0123456789abcdef<wbr>"
    for cell, broken in (
        ("<td><p>kv_bytes_a</p></td>", "<td><p>kv_<wbr>bytes_<wbr>a</p></td>"),
        ('<th class="head"><p>tail_s</p></th>', '<th class="head"><p>tail_<wbr>s</p></th>'),
        (f"<td><p>file a, sha256 {digest}</p></td>", quarter * 3 + "0123456789abcdef</p>"),
        ("<td><p><code><b>7c0</b></code></p></td>", "<td><p><code><b>7c0</b></code></p></td>"),
        ("<p>kv_bytes</p>", "<p>kv_bytes</p>"),
        ('<p><code><span class="pre">a_b</span></code></p>', '"pre">a_b</span>'),
        (
            '<p><code><span class="pre">kvlib.capacity.plan_of</span></code></p>',
            '"pre">kvlib.<wbr>capacity.<wbr>plan_<wbr>of</span>',
        ),
        (
            '<td><p><span class="pre">a/3_b.ipynb::Kind.of</span> <span>2</span></p></td>',
            '"pre">a/<wbr>3_<wbr>b.<wbr>ipynb::<wbr>Kind.<wbr>of</span>',
        ),
        ('<span class="pre">kvlib.sizes</span></code>', '"pre">kvlib.sizes</span>'),
        ('<td><p><span class="pre">0.02</span></code></p></td>', '"pre">0.02</span>'),
        ('<h3>kvlib.a_b<a class="headerlink">', '<h3>kvlib.<wbr>a_<wbr>b<a class="headerlink">'),
        ('<h2>Two. words<a class="headerlink">', "<h2>Two. words<a"),
    ):
        once = with_breaks(cell)
        assert broken in once and with_breaks(once) == once
