"""The page of `denoised-mdp report`: its numbers, what it says of damaged runs, that it stands alone."""

import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_runs import add_probes, add_video, make_run

from denoised_mdp.analysis.probes import PROBES
from denoised_mdp.analysis.report import plots as report_plots
from denoised_mdp.analysis.report.data import RunData, Speed, newest_media, read_run, speed_of
from denoised_mdp.analysis.report.groups import band, confidence, differing_options, group_runs
from denoised_mdp.analysis.report.page import render, write_report
from denoised_mdp.analysis.report.parts import machine_row, media_part
from denoised_mdp.cli.main import main
from denoised_mdp.config import load_config
from denoised_mdp.errors import UserError

T_975 = {1: 12.706205, 2: 4.302653, 3: 3.182446}  # quantiles of Student's t, from printed tables


class Tags(HTMLParser):
    """Every element with its attributes, and all text outside of style."""

    def __init__(self, page: str):
        super().__init__()
        self.found, self.text, self._stack = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._stack.append(tag)

    def handle_data(self, data):
        if self._stack and self._stack[-1] != "style":
            self.text += data


def page_of(*runs, **options) -> str:
    return render([read_run(run) for run in runs], **options)


def test_runs_that_differ_in_the_seed_alone_are_a_group(tmp_path):
    runs = [make_run(tmp_path / f"a{seed}", f"seed={seed}") for seed in (2, 0, 1)]
    runs += [make_run(tmp_path / "b", "seed=0", "model.kl.beta=0.125"), make_run(tmp_path / "again", "seed=1")]
    groups = group_runs([read_run(run) for run in runs])
    assert [[run.seed for run in group.runs] for group in groups] == [[0, 1, 2], [0], [1]]
    assert len({group.name for group in groups}) == 3
    different = dict(differing_options(groups[:2]))
    assert list(different) == ["model.kl.beta", "model.y.beta"]  # the latter follows
    assert different["model.kl.beta"][1] == "0.125"


def test_mean_and_band_by_brute_force(tmp_path):
    returns = [(1.0, 4.0, 9.0), (2.0, 8.0), (6.0, 3.0, 5.0)]
    runs = [make_run(tmp_path / str(seed), f"seed={seed}", returns=r) for seed, r in enumerate(returns)]
    (group,) = group_runs([read_run(run) for run in runs])
    steps, mean, half, count = band(group.curves("eval/return"))
    assert steps.tolist() == [100, 200, 300] and count.tolist() == [3, 3, 2]
    for place in range(3):
        values = [r[place] for r in returns if place < len(r)]
        n, average = len(values), sum(values) / len(values)
        deviation = math.sqrt(sum((value - average) ** 2 for value in values) / (n - 1))
        assert mean[place] == pytest.approx(average, abs=1e-12)
        assert half[place] == pytest.approx(T_975[n - 1] * deviation / math.sqrt(n), rel=1e-6)


def test_steps_of_several_runs_are_interpolated_inside_each_run_only():
    one, other = (np.array([0.0, 10.0]), np.array([0.0, 1.0])), (np.array([5.0, 20.0]), np.array([3.0, 6.0]))
    steps, mean, half, count = band([one, other])
    assert steps.tolist() == [0, 5, 10, 20] and count.tolist() == [1, 2, 2, 1]
    np.testing.assert_allclose(mean, [0.0, (0.5 + 3) / 2, (1 + 4) / 2, 6.0])
    assert np.isnan(half[[0, 3]]).all() and np.isfinite(half[1:3]).all()


def test_interval_covers_the_mean_of_a_normal_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(size=(4000, 4))
    covered = np.mean([abs(sample.mean()) <= confidence(sample) for sample in samples])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


def test_speed_leaves_out_standstills():
    assert vars(speed_of([(0, 0), (10, 100), (90_000, 100), (90_020, 300)])) == {"seconds": 30, "steps": 300}
    assert math.isnan(speed_of([(5, 1)]).steps_per_second)


def test_a_damaged_record_is_told_and_what_stands_before_it_counts(tmp_path):
    """Wherever a byte is wrong, or the file breaks off: the records before are read, and one sentence says it."""
    from torch.utils.tensorboard import SummaryWriter

    run = make_run(tmp_path / "run")
    with SummaryWriter(str(run / "tensorboard")) as writer:
        for step in range(0, 50, 10):
            writer.add_scalar("a", step, step, walltime=1000.0 + step)
    (path,) = (run / "tensorboard").iterdir()
    whole = path.read_bytes()
    starts = [0]  # of the records: 8 bytes of length, 4 of its checksum, data, 4 of its checksum
    while starts[-1] < len(whole):
        starts.append(starts[-1] + 16 + int.from_bytes(whole[starts[-1] : starts[-1] + 8], "little"))
    assert starts[-1] == len(whole) and len(starts) == 7  # the version, then five scalars
    assert vars(read_run(run).speed) == {"seconds": 40, "steps": 40}
    for number in (2, 4):
        for offset in (0, 7, 9, 13, starts[number + 1] - starts[number] - 1):
            place = starts[number] + offset
            for content in (whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :], whole[:place]):
                path.write_bytes(content)
                found = read_run(run)
                assert (found.speed.steps if found.speed else 0) == 10 * max(0, number - 2)
                told = [line for line in found.problems if "tfevents" in line]
                cut = len(content) == starts[number]  # between two records nothing is missing
                assert len(told) == (not cut)
                assert cut or f"cannot be read to its end (the record at byte {starts[number]:,} is not" in told[0]


def test_the_checksums_of_pictures_are_not_computed_for_the_speed(tmp_path, monkeypatch):
    """They would take seconds of each run, in pure Python. Their times count, and one that is torn is told."""
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
    from torch.utils.tensorboard import SummaryWriter

    run = make_run(tmp_path / "run")
    picture = np.random.default_rng(0).integers(256, size=(3, 64, 64), dtype=np.uint8)
    with SummaryWriter(str(run / "tensorboard")) as writer:
        writer.add_scalar("a", 1.0, 0, walltime=1000.0)
        for step in (300, 70_000):
            writer.add_image("pictures", picture, step, walltime=1000.0 + step / 100)
    checked, compute = [], pywrap_tensorflow.masked_crc32c
    monkeypatch.setattr(pywrap_tensorflow, "masked_crc32c", lambda data: checked.append(len(data)) or compute(data))
    found = read_run(run)
    assert vars(found.speed) == {"seconds": 700, "steps": 70_000}
    assert not any("tfevents" in problem for problem in found.problems)
    (path,) = (run / "tensorboard").iterdir()
    assert len(checked) > 4 and max(checked) < 100 and path.stat().st_size > 20_000
    for lost in (1, 5_000):
        os.truncate(path, path.stat().st_size - lost)
        found = read_run(run)
        assert vars(found.speed) == {"seconds": 3, "steps": 300}
        assert any("tfevents" in problem and "is not whole" in problem for problem in found.problems)


def test_a_report_of_nothing_or_with_unknown_videos_is_one_line(tmp_path):
    run = make_run(tmp_path / "base")
    assert write_report(str(run), tmp_path / "page.html", probes=str(tmp_path)).is_file(), "one needs no list"
    with pytest.raises(UserError, match="nothing to report: name at least one run"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(UserError, match="Unknown choice of videos 'two'. Choose one of: one, all, none."):
        write_report([run], tmp_path / "page.html", videos="two")
    with pytest.raises(UserError, match="no folder .*/nowhere with results"):
        write_report([run], tmp_path / "page.html", probes=str(tmp_path / "nowhere"))


def test_page_holds_what_the_run_tells(tmp_path):
    run = make_run(tmp_path / "run", "seed=7", returns=(1.0, 12.5))
    add_probes(run)
    add_video(run)
    tags = Tags(page_of(run))
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert ids == ["overview", "curves", "model", "videos", "probes", "configuration", "machine"]  # nothing is missing
    metrics = [attributes["data-metric"] for _, attributes in tags.found if "data-metric" in attributes]
    assert metrics == ["eval/return", "model/image_error", "model/kl_x"]
    kinds = [tag for tag, _ in tags.found]
    assert kinds.count("video") == 1 and kinds.count("script") == 0
    assert sum(attributes.get("class") == "heatmap" for _, attributes in tags.found) == 1
    assert "actions without sampling, always the same episodes" in tags.text  # tanh(mean) is no mode
    for text in ("12.5", "y is unused", "3 of 6", "0.0625"[:5], "0.375", "0.90", "0.20", "model.kl.beta"):
        assert text in tags.text, text


def test_groups_show_means_of_seeds_and_what_differs(tmp_path):
    runs = [make_run(tmp_path / f"s{seed}", f"seed={seed}", returns=(seed, 10.0 * seed)) for seed in (1, 2)]
    for run, recall in zip(runs, (0.5, 0.7), strict=True):
        add_probes(run, recall=recall)
    page = page_of(*runs, make_run(tmp_path / "other", "model=dreamer"))
    tags = Tags(page)
    assert "15.0 (10.0, 20.0)" in tags.text and "mean of 2 seeds" in page
    assert "signal recall 0.60 · leakage 0.20" in tags.text
    assert sum(attributes.get("class") == "heatmap" for _, attributes in tags.found) == 3
    assert "model.name" in tags.text and "dreamer" in tags.text
    assert tags.text.count("of the other seeds and clips (1)") == 2  # health and invariance
    assert "Band:" not in page
    runs.append(make_run(tmp_path / "s3", "seed=3", returns=(3, 30.0)))
    tags = Tags(page_of(*runs))
    half = T_975[2] * 10.0 / math.sqrt(3)  # deviation of 10, 20 and 30 is 10
    assert f"20.0 ± {half:.1f}" in tags.text and "Band:" in tags.text


def test_title_has_what_the_groups_share(tmp_path):
    one, other = make_run(tmp_path / "a", returns=()), make_run(tmp_path / "b", "model=dreamer", returns=())
    page = page_of(one, other)
    assert "<h1>dot · backprop</h1>" in page and "2 configurations compared · 2 runs" in page
    assert ["2b", "dreamer"] == [group.name for group in group_runs([read_run(one), read_run(other)])]
    elsewhere = make_run(tmp_path / "c", "env.task=dot", "distractors=camera_jitter", returns=())
    assert "<h1>2 configurations compared</h1>" in page_of(one, elsewhere)  # "2b · backprop" would say little
    assert "<h1>mine</h1>" in page_of(one, other, title="mine")
    assert "<h1>dot · 2b · backprop</h1>" in page_of(one) and "configurations compared" not in page_of(one)


def test_wide_bands_do_not_flatten_the_curves(tmp_path, monkeypatch):
    """Three seeds of which one is far off in the middle: the frame shows every run, and of the band what fits."""
    limits = []
    monkeypatch.setattr(report_plots, "svg_uri", lambda figure: limits.append(figure.axes[0].get_ylim()) or "data:")
    returns = [(1.0, 10.0, 3.0), (1.0, 0.0, 3.0), (1.0, 20.0, 3.0)]
    runs = [make_run(tmp_path / str(seed), f"seed={seed}", returns=r) for seed, r in enumerate(returns)]
    groups = group_runs([read_run(run) for run in runs])
    report_plots.curves_plot(groups, "eval/return", "")
    half = T_975[2] * 10.0 / math.sqrt(3)
    ((low, high),) = limits
    assert -half < -6.5 <= low <= 0.0 and 20.0 <= high <= 26.5 < 10 + half
    report_plots.curves_plot(groups, "model/kl_x", "")  # always 1.5: the limits are still a range
    assert limits[1][0] < 1.5 < limits[1][1]


def test_text_of_runs_is_escaped(tmp_path):
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)> $a_b$ {{ 7 * 7 }}'
    run = make_run(tmp_path / "a<b>&'c", returns=())
    add_probes(run, warning=evil)
    (run / "metrics.jsonl").write_text('{"step": 5, "policy/<b>$x$": 1.5}\n')
    page = page_of(run, title=evil)
    tags = Tags(page)
    assert {"script", "b"} & {tag for tag, _ in tags.found} <= {"b"} and "onerror" not in str(
        [attributes.keys() for _, attributes in tags.found]
    )
    assert tags.text.count(evil) >= 2  # as text, to the letter


def test_page_stands_alone(tmp_path):
    run = make_run(tmp_path / "run")
    add_probes(run)
    add_video(run)
    page = page_of(run)
    assert "http" not in re.sub(r'"data:[^"]*"', "", page).replace("http-equiv", "")
    for tag, attributes in Tags(page).found:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#")), (tag, attributes[name][:80])


FACTORS, HEALTH, INVARIANCE = (f"probes/{probe}_train_000000200.json" for probe in ("factors", "health", "invariance"))
DAMAGE = {  # file -> its content, and what the page says of it
    "torn": {
        "config.yaml": (b"seed: [", "configuration cannot be read"),
        "metrics.jsonl": (b'{"step": 1, "eval/return": null}\n{"st', "1 value in metrics.jsonl is no finite number"),
        FACTORS: (b'{"probe": "factors"', f"{FACTORS} cannot be read"),
        "videos/step_000000200.mp4": (b"\x00\x00\x00\x18ftypisom", "no whole MP4"),
        "videos/step_000000200.png": (b"\x89PNG\r\n", "step_000000200.png cannot be shown"),
        "machine.jsonl": (b"{", "1 line of machine.jsonl cannot be read"),
        "tensorboard/events.out.tfevents.1.a.1.0": (b"nonsense" * 9, "cannot be read to its end (the record at byte 0"),
    },
    "replaced": {
        "config.yaml": (b"\xff\xfe\x00", "configuration cannot be read"),
        "metrics.jsonl": (b"[" * 100_000 + b'\n{"step": "x", "eval/return": 3}\n', "2 lines of metrics.jsonl"),
        FACTORS: (b'{"probe": "factors", "run": "r", "step": 3, "parts": 4}', "factors_train_000000200.json cannot"),
        HEALTH: (b'{"probe": "health", "run": "r", "nats": {"x": "a"}}', "health_train_000000200.json cannot be shown"),
        INVARIANCE: (b'{"probe": "invariance", "run": "r", "distances": []}', "invariance_train_000000200.json cannot"),
    },
    "empty": {"config.yaml": (b"", "configuration cannot be read"), "metrics.jsonl": (b"", "holds no metrics yet")},
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_broken_parts_are_told(tmp_path, kind):
    run = make_run(tmp_path / "run")
    add_probes(run)
    for name, (content, _) in DAMAGE[kind].items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(content)
    page = page_of(run)
    problems = Tags(page.partition('<section id="problems">')[2]).text
    for name, (_, told) in DAMAGE[kind].items():
        assert told in problems, name
    assert "Traceback" not in page


def test_titles_of_a_run_whose_configuration_cannot_be_read_have_no_seed(tmp_path):
    run = make_run(tmp_path / "run")
    add_probes(run)
    add_video(run)
    assert "run · seed 0 · step 200" in Tags(page_of(run)).text
    (run / "config.yaml").write_text("")
    text = Tags(page_of(run)).text
    assert "run · step 200" in text and "seed None" not in text


def test_missing_parts_are_told(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    text = Tags(page_of(run)).text
    for told in ("There is no metrics.jsonl", "There is no video", "No results of probes", "No returns were logged"):
        assert told in text


def test_no_video_is_asked_of_an_agent_that_cannot_decode(tmp_path):
    run = RunData(tmp_path)
    for words, told in ((["model=repo"], 1), (["model=repo", "model.decoder=false"], 0), (["agent=curl"], 0)):
        run.config, problems = load_config(["preset=quickstart", *words]), []
        assert media_part(run, problems) is None and len(problems) == told


def test_of_pictures_of_one_step_the_trainings_are_shown_and_those_of_unseen_clips_say_so(tmp_path):
    folder, run = tmp_path / "videos", RunData(tmp_path, load_config(["preset=quickstart"]))
    folder.mkdir()
    found = []
    for name in ("test_000000200", "train_000000200", "step_000000200", "test_000000300"):
        Image.new("RGB", (4, 4)).save(folder / f"{name}.png")
        run.media = newest_media(folder)
        found.append((run.media.name, "unseen clips" in media_part(run, [])["title"]))
    assert found == [
        ("test_000000200", True),
        ("train_000000200", False),
        ("step_000000200", False),
        ("test_000000300", True),
    ]


def test_command(tmp_path, capsys):
    run, page = make_run(tmp_path / "run"), tmp_path / "page.html"
    assert main(["report", str(run), str(run), "-o", str(page), "--videos", "none"]) == 0
    assert str(page) in capsys.readouterr().out and page.read_text().startswith("<!DOCTYPE html>")
    for wrong in (
        ["report", str(tmp_path / "no")],
        ["report", str(run), "-o", str(tmp_path)],
        ["report", str(run), "-o", str(page / "a.html")],
        ["report", str(run), "--probes", str(tmp_path / "no")],
    ):
        assert main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_results_are_of_the_run_that_they_name(tmp_path):
    """Not of another one whose folder has the same name; of one that was moved, by its name."""
    run, namesake = make_run(tmp_path / "a" / "seed=1"), make_run(tmp_path / "b" / "seed=1")
    add_probes(run)
    (run / "probes").rename(tmp_path / "gathered")
    results = next((tmp_path / "gathered").glob("*.json"))
    results.with_name("health_seed=1_000000240.json").write_bytes(results.read_bytes())  # as with --output
    read = [read_run(path, [tmp_path / "gathered"]).probes for path in (run, namesake)]
    assert read[0] and not read[1]
    with pytest.raises(UserError, match="both are named seed=1. Choose another --output"):
        options = PROBES["health"].Options(output=tmp_path / "gathered")
        PROBES["health"].run([namesake], options)
    (tmp_path / "a").rename(tmp_path / "c")
    assert read_run(tmp_path / "c" / "seed=1", [tmp_path / "gathered"]).probes.keys() == read[0].keys()


def test_results_gathered_in_another_folder(tmp_path):
    run = make_run(tmp_path / "run")
    add_probes(run)
    (run / "probes").rename(tmp_path / "gathered")
    page = tmp_path / "reports" / "page.html"  # whose folder is made, as for all results
    assert 'class="heatmap"' in write_report([run], page, probes=[tmp_path / "gathered"]).read_text()
    with pytest.raises(UserError, match="no folder"):
        write_report([run], tmp_path / "page.html", probes=[tmp_path / "nowhere"])


def test_totals_are_divided_by_the_time_that_they_took():
    """Half of the TensorBoard files are gone: the clock knows 100 of the 200 steps."""
    steps = np.array([100.0, 200.0])
    metrics = {"train/updates": (steps, np.array([10.0, 20.0])), "eval/seconds": (steps, np.array([4.0, 6.0]))}
    row = machine_row(RunData(Path("run"), metrics=metrics, speed=Speed(50.0, 100)))
    assert row[-3:] == ["2.0", "0.20", "10%"]  # steps/s; 20 updates of 200 steps at 2 steps/s; 10 s of 100
    assert machine_row(RunData(Path("run"), metrics=metrics))[-3:] == ["-", "-", "-"]
    nothing = {name: (np.zeros(1), values[:1]) for name, (_, values) in metrics.items()}
    assert machine_row(RunData(Path("run"), metrics=nothing, speed=Speed(50.0, 100)))[-2:] == ["-", "-"]
