"""The page of `denoised-mdp report` in a real browser."""

import pytest
from browser import CHROMIUM, Browser
from report_runs import add_probes, add_video, make_run

from denoised_mdp.analysis.report.page import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")

PLAYS = """(async () => {
  const video = document.querySelector("video"); await video.play();
  const began = performance.now();
  while (video.currentTime < 0.1 && performance.now() - began < 60000) await new Promise(r => setTimeout(r, 50));
  return [video.currentTime >= 0.1, video.videoWidth, video.videoHeight, video.error === null];
})()"""
PICTURES = """(async () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const pictures = [...document.images];
  await Promise.all(pictures.map(one => one.decode()));
  return pictures.map(one => one.naturalWidth > 0);
})()"""


def test_page_in_a_browser(tmp_path):
    runs = [make_run(tmp_path / f"s{seed}", f"seed={seed}", returns=(seed, 3.0, 5.0)) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "a_run_with_a_rather_long_name_of_its_folder", "model=dreamer"))
    for run in runs[:2]:
        add_probes(run)
    add_video(runs[0])
    page = write_report(runs, tmp_path / "page.html")
    browser = Browser(tmp_path / "profile")
    try:
        for width in (390, 1280):  # a phone and a laptop
            browser.open(page, width, 800)
            assert browser.run("document.querySelectorAll('section').length") == 8
            assert browser.run("document.querySelectorAll('img.heatmap').length") == 3
            assert browser.run("document.documentElement.scrollWidth") <= width  # nothing sticks out
            shown = browser.run(PICTURES)
            assert len(shown) >= 7 and all(shown)
            assert browser.complaints() == []
        assert browser.run(PLAYS) == [True, 160, 96, True]
        assert browser.complaints() == []
    finally:
        browser.close()
