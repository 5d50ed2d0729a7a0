"""Headless Chromium: opens a copy of a page, in frames of given widths, and hands back what was measured there."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--enable-logging=stderr",
]

WATCH = """<script>
window.faults = [];
addEventListener("error", event => faults.push(`error: ${event.message || event.target.tagName}`), true);
addEventListener("securitypolicyviolation", event => faults.push(`blocked: ${event.blockedURI}`));
</script>"""

MEASURE = """<script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(({contentWindow: page}) => {
    const all = chosen => [...page.document.querySelectorAll(chosen)];
    const out = all("body *").filter(e => !e.closest(".wide") && e.getBoundingClientRect().right > page.innerWidth + 1);
    return {
      width: page.innerWidth,
      scrollWidth: page.document.documentElement.scrollWidth,
      beyond: out.map(e => e.outerHTML.slice(0, 80)),
      faults: page.faults,
      pwned: Boolean(window.pwned || page.pwned),
      foreign: all("script:not(:first-of-type), img, link, iframe, object, embed, [src], [onerror], [onload]").length,
      strips: all(".heat-map .cells").map(strip => strip.querySelectorAll("g").length),
      absent: all(".heat-map rect.h0").length,
      matrix: all(".matrix td").map(cell => cell.textContent),
      trends: all("svg.trend").map(chart => chart.getAttribute("aria-label")),
      unlabelled: all("svg:not([aria-label]):not([aria-hidden])").length,
      background: page.getComputedStyle(page.document.body).backgroundColor,
    };
  });
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def chromium():
    """Its path; without it the test is skipped."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    return path or pytest.skip("no Chromium is installed: apt-get install -y chromium")


def opened(path, profile, *flags):
    """The DOM of a file after it has loaded, and what the browser said on its console."""
    command = [chromium(), *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measured(page, directory, widths=(375, 1440), dark=False):
    """For each width what `MEASURE` finds in a copy of the page that lets a script run, ours or a stranger's."""
    assert _POLICY in page
    copy = page.replace(_POLICY, f"{_POLICY}; script-src 'unsafe-inline'").replace("<title>", f"{WATCH}<title>", 1)
    frames = "".join(
        f'<iframe srcdoc="{escape(copy)}" style="width:{width}px;height:900px"></iframe>' for width in widths
    )
    path = directory / "frames.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{MEASURE}<body>{frames}", encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom, _ = opened(path, directory / f"profile-{dark}", scheme)
    return json.loads(unescape(re.search(r'<pre id="found">(.*)</pre>', dom, re.DOTALL)[1]))
