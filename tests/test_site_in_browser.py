"""The documentation site in headless Chromium: it loads, searches and fits, and stays on its host.

Needs MkDocs and Playwright, which `make docs` and `make test-full` install, and a Chromium
(`apt-get install chromium` on Debian). Screenshots are kept in artifacts/site.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCREENSHOTS = ROOT / "artifacts" / "site"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MISSING = [
    name for name in ("mkdocs", "material", "mkdocstrings", "playwright") if not find_spec(name)
]
PAGES = {
    "index.html": "lbrx",
    "start/linux.html": "Five minutes on Linux",
    "tutorials/profile_and_fuse.html": "Profile and fuse",
    "howto/merging.html": "Merging models",
    "reference/kernels.html": "Kernels and their variants",
    "reference/python/tensor.html": "The Tensor class",
    "reference/python/softmetal_metal.html": "Metal's classes and functions",
    "explanation/quantization_formats.html": "Quantization formats",
    "project/architecture.html": "Architecture",
}
WIDTHS = {"desktop": 1400, "phone": 390}
LOOKS = [("desktop", "light"), ("phone", "dark")]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """A function that opens an address; whatever goes wrong on the page fails the test."""
    problems, contexts = [], []

    def open_page(url, *, width=WIDTHS["desktop"], scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
        page.on("request", lambda request: problems.extend(_elsewhere(request.url, url)))
        page.goto(url, wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def _elsewhere(requested, opened):
    """The address of a request that leaves the host, or the folder, of the page."""
    own = opened.split("/")[:3]
    local = requested.startswith(("data:", "blob:", "about:"))
    return [] if local or requested.split("/")[:3] == own else [f"another host: {requested}"]


WIDER = """() => {
  const boxes = [...document.querySelectorAll("article table")].map(t => t.parentElement);
  const wide = boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.innerText);
  const whole = document.documentElement;
  return whole.scrollWidth > innerWidth ? ["the page", ...wide] : wide;
}"""
EMPTY = "[...document.querySelectorAll('article th')].filter(t => !t.innerText.trim()).length"
KINDS = """[...document.querySelector("article").children]
  .map(e => e.querySelector("img") ? "IMG" : e.querySelector("pre") ? "CODE" : e.tagName)"""


def test_tables_fit_a_small_desktop(site, address, browser):
    """No page or table is wider than its place at 1,280 pixels, and each column has a heading."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page.goto(f"{address}/{name}", wait_until="domcontentloaded")
        found[name] = (page.evaluate(WIDER), page.evaluate(EMPTY))
    page.close()
    assert {name: wrong for name, wrong in found.items() if wrong != ([], 0)} == {}


def test_the_home_page_begins_with_code_a_picture_and_how_to_install(address, opened):
    page = opened(f"{address}/index.html", width=1280)
    assert page.evaluate(KINDS)[:5] == ["H1", "P", "CODE", "IMG", "CODE"]
    code = page.locator("article pre").all_inner_texts()
    assert "import lbrx" in code[0]
    assert code[1].startswith("pip install ")
    _keep(page, "home-1280")


def _keep(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("place", PAGES)
def test_a_page(address, opened, place, width, scheme):
    page = opened(f"{address}/{place}", width=WIDTHS[width], scheme=scheme)
    assert page.locator("h1").first.inner_text().startswith(PAGES[place])
    shown = page.evaluate("document.body.dataset.mdColorScheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert over <= 0, "the page is wider than the window"
    images = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)"
    assert page.evaluate(images) == []
    _keep(page, f"{place.removesuffix('.html').replace('/', '_')}-{width}-{scheme}")


@pytest.mark.parametrize("name", ["rms_norm", "MTLIndirectCommandBuffer", "SOFTMETAL_CHECK"])
@pytest.mark.parametrize("kind", ["server", "folder"])
def test_search_finds_a_name(site, address, opened, kind, name):
    """Also from a folder, without a server."""
    page = opened(f"{address}/index.html" if kind == "server" else f"file://{site}/index.html")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(name)
    results = page.locator(".md-search-result__item")
    results.first.wait_for(timeout=60_000)
    assert name in results.first.inner_text()
    _keep(page, f"search-{kind}-{name}")
    results.first.locator("a").first.click()
    page.wait_for_url(lambda url: "index.html" not in url)
    assert page.get_by_text(name).count() > 0


def test_the_palette_can_be_changed(address, opened):
    page = opened(f"{address}/index.html")
    page.locator("label[for=__palette_1]").click()
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
