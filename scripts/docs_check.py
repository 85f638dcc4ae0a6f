"""Checks of the built site: every link leads somewhere, and no page loads anything from elsewhere. A hook of mkdocs."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = re.compile(r"https://github\.com/padir/padir/(?:blob|tree)/main/([^#?]+)")
LOADS = {"link": "href", **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src")}


class Page(HTMLParser):
    """The anchors, links and loaded files of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADS and LOADS[tag] in found:
            self.loads.append(found[LOADS[tag]])


def on_post_build(config: Any) -> None:
    """Fails the build if a link is broken or a page loads something from elsewhere."""
    if faults := list(check(Path(config["site_dir"]))):
        raise SystemExit("the site has faults:\n" + "\n".join(faults))


def check(site: Path) -> Iterator[str]:
    """The faults of a built site, a line each."""
    pages = {path.resolve(): Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        if where.name == "404.html":  # its links are absolute, as it is shown anywhere
            continue
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{where}: loads {target}"
        for target in page.links + page.loads:
            if fault := _broken(target, path, pages):
                yield f"{where}: {fault}"
    for path in site.rglob("*.css"):
        for target in re.findall(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")]+)", path.read_text()):
            yield f"{path.relative_to(site)}: loads {target}"


def _broken(target: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """The reason why a link of a page leads nowhere; None if it does not."""
    if found := REPOSITORY.match(target):
        return None if (ROOT / unquote(found[1])).exists() else f"the repository has no {found[1]}"
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None  # of another site: checked by nobody here, as the build is offline
    file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    file = file / "index.html" if file.is_dir() else file
    if not file.exists():
        return f"no {target}"
    anchor = unquote(parts.fragment)
    if anchor and not anchor.startswith("__") and file in pages and anchor not in pages[file].anchors:
        return f"no anchor {target}"
    return None
