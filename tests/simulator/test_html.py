"""The page of a timeline: all that the trace has, a critical path that is one, and a mouse that finds what it shows."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.simulator.browser import MISSING, browser
from tests.simulator.cases import H200S, SHIFT, planned
from tilelink.cli import app
from tilelink.simulator import simulate
from tilelink.simulator.html import Lane, Slice, critical_path, page_text, save_page
from tilelink.simulator.trace import trace_events

RESULT = simulate(planned(SHIFT, ranks=3, schedule="copy_sms", M=256, N=128), H200S)


def panels(page: str) -> list[dict[str, Any]]:
    (packed,) = re.findall(r'id="data">([^<]*)<', page)
    return json.loads(zlib.decompress(b64decode(packed)))


def test_the_page_has_all_of_the_trace_and_needs_no_network() -> None:
    events = list(trace_events(RESULT))
    page = page_text("<shift>", {"predicted": events})
    assert "&lt;shift&gt;" in page and not re.findall(r"https?:|src=|@import|fetch\(", page)
    (panel,) = panels(page)
    slices = {
        (lane["rank"], lane["group"], begin, end, panel["names"][what])
        for lane in panel["lanes"]
        for begin, end, what in zip(lane["begin"], lane["end"], lane["what"], strict=True)
    }
    wanted = [e for e in events if e["ph"] in "Xb"]
    assert sum(len(lane["begin"]) for lane in panel["lanes"]) == len(wanted)
    assert {(e["pid"], round(e["ts"] * 1000), e["name"]) for e in wanted} == {(r, b, w) for r, _, b, _, w in slices}
    assert {lane["group"] for lane in panel["lanes"]} == {"send", "add", "link in", "link out"}
    for lane in panel["lanes"]:
        assert all(end <= begin for end, begin in zip(lane["end"], lane["begin"][1:], strict=False))
    arrows = [(panel["lanes"][a], notify, panel["lanes"][b], wait) for a, notify, b, wait in panel["arrows"]]
    assert len(arrows) == sum(e["ph"] == "s" for e in events) > 0
    for source, notify, target, wait in arrows:
        assert (panel["names"][source["kind"][notify]], panel["names"][target["kind"][wait]]) == ("notify", "wait")
        assert target["rank"] == (source["rank"] + 1) % 3 and target["begin"][wait] < target["end"][wait]
        keys, *values = target["note"][wait]
        assert dict(zip(panel["keys"][keys], values, strict=True))["tensor"] == "h"


def test_the_critical_path_leads_from_the_end_over_signals_to_the_begin() -> None:
    (panel,) = panels(page_text("", {"": trace_events(RESULT)}))
    path, lanes = panel["critical"], panel["lanes"]
    assert path[0][2] == panel["span"] and len(path) > 1
    for (lane, begin, _), (before, _, until) in pairwise(path):
        assert until < begin
        rows = [(notify, wait) for a, notify, b, wait in panel["arrows"] if (a, b) == (before, lane)]
        assert any(lanes[before]["begin"][n] == until and lanes[lane]["end"][w] == begin for n, w in rows)
    lane, begin, _ = path[-1]
    assert (lanes[lane]["group"], lanes[lane]["begin"][0]) == ("send", begin)


def test_a_critical_path_ends_where_lanes_take_no_time() -> None:
    """Programs whose activities are shorter than the clock's step are before themselves, and before one another."""
    spans = {"last": [(7, 9)], "none": [(7, 7), (7, 7)], "other": [(7, 7)], "first": [(2, 5)]}
    lanes = [
        Lane(rank=0, group=name, name=name, slices=[Slice(begin, end, "compute", name, {}) for begin, end in own])
        for name, own in spans.items()
    ]
    assert critical_path(lanes, []) == [(0, 7, 9), (1, 7, 7), (2, 7, 7), (3, 2, 5)]
    assert critical_path(lanes[1:2], []) == [(0, 7, 7)]


def test_a_run_has_the_predicted_launch_above_the_last_measured_one(tmp_path: Path) -> None:
    (tmp_path / "shift.tl").write_text(SHIFT)
    command = ["run", str(tmp_path / "shift.tl"), "-n", "2", "-s", "copy_sms", "--set", "M=64", "N=16", "--repeat", "2"]
    done = CliRunner().invoke(app, [*command, "--html", str(tmp_path / "run.html")])
    assert done.exit_code == 0, done.output
    predicted, measured = panels((tmp_path / "run.html").read_text())
    assert predicted["heading"].startswith("predicted for 8xH200: ") and "measured" in measured["heading"]
    assert predicted["span"] < measured["span"]  # each has the whole width: an interpreter's time is not a GPU's
    lanes = [{(lane["rank"], lane["name"]) for lane in one["lanes"] if "link" not in lane["group"]}
             for one in (predicted, measured)]  # fmt: skip
    assert lanes[0] == lanes[1], "the same programs, of the same plan"
    launch = {
        dict(zip(measured["keys"][k], v, strict=True)).get("launch") for x in measured["lanes"] for k, *v in x["note"]
    }
    assert launch - {None} == {2}


@pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)}: apt-get install chromium chromium-driver")
def test_a_browser_shows_what_is_under_the_mouse(tmp_path: Path) -> None:
    save_page(RESULT, tmp_path / "page.html")
    with browser() as page:
        page.open(tmp_path / "page.html")
        assert page.until("document.body.dataset.ready") == "1"
        folded = page.eval("rows.length")
        x, y = page.eval("(r => [80, css().top + r.y + 8])(rows.find(r => r.group && r.group.name === 'add'))")
        page.point(x, y, click=True)
        assert page.eval("rows.length") == folded + 8  # programs
        lane, wait = page.eval("panels[0].arrows[0].slice(2)")
        page.eval(f"zoom(0.3, GUTTER) || goTo(panels[0], {lane}, {wait}) || show()")
        place = f"placeOf(panels[0], {lane}, {wait})"
        x, y = page.eval(f"(p => [(p.left + p.right) / 2, css().top + p.y - view.top])({place})")
        page.point(x, y)
        text = page.until("tip.style.display === 'block' && tip.innerText")
        assert re.search(r"rank 0, add program \d: wait for h channel \[\d, \d\]\n", text)
        assert re.search(r"ended by send tile \d of rank 2, which notified at [\d.]+ µs", text)
        page.save_screenshot(tmp_path / "page.png")
        pixels = page.eval(
            "new Set(pen.getImageData(0, 0, canvas.width, canvas.height).data.filter((_, i) => i % 4 === 0)).size"
        )
        assert pixels > 5, "something is drawn"
        before = page.eval("view.to - view.from")
        page.eval("canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -200, ctrlKey: true, clientX: 700}))")
        assert page.eval("view.to - view.from") < before
