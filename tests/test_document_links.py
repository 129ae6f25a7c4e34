"""Links between the documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *(path for part in ("docs", "results", "videos") for path in (ROOT / part).rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^\s*```.*?^\s*```", re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """All anchors of a document."""
    return {anchor(found) for found in HEADING.findall(CODE.sub("", path.read_text()))}


def broken(path: Path) -> list[str]:
    """The relative links of a document without a file, or without the heading."""
    links = [link for link in LINK.findall(CODE.sub("", path.read_text())) if "://" not in link]
    lost = []
    for link in links:
        name, _, wanted = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (wanted and wanted not in anchors(target)):
            lost.append(link)
    return lost


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_to_a_file_and_a_heading(path):
    assert broken(path) == []


def test_a_lost_file_and_a_lost_heading_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# One\n## A `code` & [link](x), too\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md) [b](#top) [c](other.md#a-code--link-too) [d](https://example.com/x#y)\n"
        "[e](lost.md) [f](#lost) [g](other.md#no-heading)\n```\n[h](in_code.md)\n```\n"
    )
    assert broken(page) == ["lost.md", "#lost", "other.md#no-heading"]
