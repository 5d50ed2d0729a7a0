"""The page: what is on it, that nothing in a dump can get out of its place, and how it looks to a real browser."""

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.browser import measured, opened
from report.dumps import write_run, write_step
from verl_ext.report import summarize
from verl_ext.report.page import page

ATTACKS = (
    "<script>top.pwned = window.pwned = 1</script>",
    "<img src=x onerror='top.pwned = 1'>",
    "\"><svg onload='top.pwned = 1'>",
    "'><svg onload=top.pwned=1>",
    "</style></title></svg><script>top.pwned=1</script>",
    "<!--",
    "]]>",
    "${title} $body $",
    "&lt;script&gt;",
    "\x1b[31mred\x1b[0m \x1b]8;;http://x\x07",
    "[bold red]rich[/] [link=http://x]:warning:",
    "\u202etxt.exe",
    "\0",
    "\ud800",
    "\n\n# heading",
    "",
    "   ",
    "z\u0363\u0364\u0365" * 40,
    "汉字" * 60,
    "x" * 1_000_000,
)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return page(summarize(write_run(tmp_path_factory.mktemp("stock") / "run", stock=True)))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return page(summarize(write_run(tmp_path_factory.mktemp("ours") / "run", steps=30)))


def hostile_run(directory: Path, *attacks):
    rows = [
        {"score": 1.0, "data_source": attack, attack: attack, f"{attack} number": 0.5, "text": attack}
        for attack in attacks
    ]
    write_step(directory, 1, rows)
    write_step(directory, 2, rows[::2])
    return directory


def markup(text):
    """The tags of a page, without what they hold."""
    return re.findall(r"</?[a-zA-Z!][^>]*>", text.split("</style>", 1)[1])


def test_the_page_names_no_address_and_holds_no_script(ours, stock):
    for text in (ours, stock):
        assert not re.search(r"https?:|url\(|@import|<script|<img|<link|javascript:", text)
        assert "default-src 'none'; style-src 'unsafe-inline'" in text


def test_what_stands_out_is_said_with_its_cause(stock):
    assert re.search(r"pred</span> <b>comes and goes</b>: in steps 3, 6, 9, 12; absent from steps 1.2, 4.5", stock)
    assert "first sample of a batch decides" in stock


def test_coverage_is_also_a_table_of_numbers(stock):
    assert "The same as a table" in stock
    row = re.search(r'<tr><th scope="row" class="key">pred</th>((?:<td class="n">\d+</td>)+)</tr>', stock)[1]
    assert re.findall(r">(\d+)<", row) == ["0", "0", "24"] * 4


def test_faults_are_on_the_page_and_escaped(tmp_path):
    write_step(tmp_path, 1, [{"score": 1}, "<b>no json</b>"])
    (tmp_path / "<i>.jsonl").write_text("[1]\n")
    text = page(summarize(tmp_path))
    assert "2 places in the dumps that could not be read" in text
    assert "1.jsonl:2: no JSON object: Expecting value at column 1" in text
    assert "&lt;i&gt;.jsonl:1: no JSON object, but a list" in text


@pytest.mark.parametrize("rows", [[], [{}], [{"score": None}], [{"score": float("nan")}, {"score": float("inf")}]])
def test_a_dump_with_next_to_nothing_in_it_makes_a_page(rows, tmp_path):
    write_step(tmp_path, 1, rows)
    assert "</main>" in page(summarize(tmp_path))


def test_hostile_names_and_values_add_no_tag_to_the_page(tmp_path):
    harmless = page(summarize(hostile_run(tmp_path / "a", *(f"key{index:03}" for index in range(len(ATTACKS))))))
    hostile = page(summarize(hostile_run(tmp_path / "a2", *ATTACKS)))
    assert {re.match(r"</?[a-zA-Z!]+", tag)[0] for tag in markup(hostile)} <= {
        re.match(r"</?[a-zA-Z!]+", tag)[0] for tag in markup(harmless)
    }
    assert len(hostile) < 4 * len(harmless)
    assert not re.search(r"[\0-\x08\x0b-\x1f\x7f\u202e\ud800-\udfff]", hostile)


@given(name=st.text(max_size=20), value=st.text(max_size=20))
def test_any_name_and_any_value_leave_the_tags_of_the_page_as_they_are(name, value, tmp_path_factory):
    def tags(key, text):
        directory = tmp_path_factory.mktemp("dump")
        write_step(directory, 1, [{"other": 1.0, f"k{key}": text}])
        return [re.sub(r'aria-label="[^"]*"', "", tag) for tag in markup(page(summarize(directory)))]

    assert tags(name, value) == tags("ey", "value")


def test_ten_thousand_keys_make_a_page_of_bounded_size(tmp_path):
    for step in range(3):
        write_step(tmp_path, step, [{f"key {index}": index for index in range(10_000)}])
    text = page(summarize(tmp_path))
    assert len(text) < 500_000
    assert "and 880 more keys" in text
    assert "and 9,000 keys that were only counted" in text


# --- in a browser ----------------------------------------------------------------------------------------------------


def test_at_375_and_1440_pixels_nothing_sticks_out_no_script_fails_and_the_heat_map_is_there(stock, tmp_path):
    found = measured(stock, tmp_path)
    assert [one["width"] for one in found] == [375, 1440]
    for one in found:
        assert one["scrollWidth"] <= one["width"]
        assert one["beyond"] == []
        assert one["faults"] == []
        assert one["strips"] == [12] * 4 + [4] * 4  # two dumps of four keys
        assert one["absent"] == 2 * 8 + 2 * 2
        assert one["matrix"][:3] == ["100 %"] * 3
        assert {label.split(":")[0] for label in one["trends"]} == {"score", "acc", "length_penalty"}
        assert one["unlabelled"] == 0
        assert one["foreign"] == 0


def test_it_follows_the_readers_choice_of_light_or_dark(ours, tmp_path):
    def brightness(dark):
        (one,) = measured(ours, tmp_path, widths=(800,), dark=dark)
        return sum(map(int, re.findall(r"\d+", one["background"])[:3])) / 3

    assert brightness(dark=True) < 60 < 200 < brightness(dark=False)


def test_no_request_leaves_and_the_console_is_silent_even_where_names_and_values_try(tmp_path):
    asked = []

    class Noting(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Noting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        tries = (
            f"<img src={there}/img>",
            f"</style><style>@import url({there}/css)",
            f"<link rel=icon href={there}/icon>",
        )
        path = tmp_path / "page.html"
        path.write_text(page(summarize(hostile_run(tmp_path / "dump", *ATTACKS, *tries))), encoding="utf-8")
        _, said = opened(path, tmp_path / "profile")
        (one,) = measured(path.read_text(encoding="utf-8"), tmp_path, widths=(375,))
        server.shutdown()
    assert asked == []
    assert said == []
    assert not one["pwned"]
    assert one["faults"] == []
    assert one["foreign"] == 0
    assert one["scrollWidth"] <= 375
