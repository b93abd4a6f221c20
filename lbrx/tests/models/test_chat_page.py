"""The server's chat page: what it may load, and in headless Chromium what it shows and does.

Needs Playwright, which `make docs` and `make test-full` install, and a Chromium (`apt-get install
chromium` on Debian). Screenshots are kept in artifacts/chat.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_server import folder, running, server

__all__ = ["folder", "server"]  # fixtures

SCREENSHOTS = Path(__file__).parents[3] / "artifacts" / "chat"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
in_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="needs Playwright, which make docs installs, and a Chromium: apt-get install chromium",
)
ANSWER = """Some **bold** and `code <b>`, a [link](https://example.org/?q=1) and $E = mc^2$.

# Title <script>window.hacked = 1</script>

1. first
2. second
   - inner *item*

```python
def f(x):  # remark
    return "<img src=x onerror=alert(1)>"
```

| name | value |
|---|---|
| a | **1** |

<img src="https://evil.example/x.png" onerror="window.hacked = 1">
![picture](https://evil.example/y.png) [bad](javascript:window.hacked=1)

$$
a_1 * b_1 * c
$$

> quoted
"""


def answer_of(server, path: str):
    with urllib.request.urlopen(server.url + path) as answer:
        return answer.headers, answer.read().decode()


def test_the_page_loads_nothing_from_elsewhere(server):
    headers, page = answer_of(server, "/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    files = re.findall(r'(?:src|href)="(/page/[^"]+)"', page)
    assert len(files) == 2
    for name in files:
        headers, text = answer_of(server, name)
        assert headers["X-Content-Type-Options"] == "nosniff"
        files += [f"/page/{each}" for each in re.findall(r'from "\./([^"]+)"', text)]
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert "<script>" not in page
    assert " on" + "click" not in page
    assert server.send("/page/nothing.js")[0] == 404
    assert server.send("/page/..%2Fapp.py")[0] == 404


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """A function that opens the page; a request to another host or an error there fails the test."""
    problems, contexts = [], []

    def open_page(server, *, width=1280, scheme="light", answers=()):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: _check_host(request.url, server.url, problems))
        waiting = list(answers)
        if waiting:
            page.route(
                "**/v1/chat/completions",
                lambda route: route.fulfill(content_type="text/event-stream", body=waiting.pop(0)),
            )
        page.goto(server.url)
        page.locator("#model option").first.wait_for(state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def _check_host(requested: str, url: str, problems: list[str]) -> None:
    if not requested.startswith((url, "data:", "blob:")):
        problems.append(f"another host: {requested}")


def stream(text: str, size: int = 7, **delta) -> str:
    """The events of an answer."""
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    deltas = [{"role": "assistant", "content": ""}, delta, *({"content": one} for one in pieces)]
    events = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    events.append({"choices": [], "usage": {"completion_tokens": len(pieces)}})
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"


def say(page, text: str) -> None:
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")


def answered(page, count: int = 1) -> None:
    page.locator("#send:visible").wait_for()
    page.wait_for_function(f"document.querySelectorAll('article.assistant').length === {count}")


def keep(page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_an_answer_is_markdown_and_never_html(server, opened, width, scheme):
    page = opened(
        server, width=width, scheme=scheme, answers=[stream(ANSWER, reasoning_content="why")]
    )
    say(page, "<b>Hello</b>")
    answered(page)
    body = page.locator("article.assistant .body")
    assert page.locator("article.user .body").inner_text() == "<b>Hello</b>"
    assert page.evaluate("window.hacked") is None
    assert body.locator("script, img, iframe, style").count() == 0
    links = body.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel])")
    assert links[0][0] == "https://example.org/?q=1"
    assert all(href.startswith("https://") and "noopener" in rel for href, rel in links)
    assert body.locator("strong").first.inner_text() == "bold"
    assert body.locator("h3").inner_text() == "Title <script>window.hacked = 1</script>"
    assert body.locator("ol > li").count() == 2
    assert body.locator("ol ul em").inner_text() == "item"
    assert 'return "<img src=x onerror=alert(1)>"' in body.locator("pre code").inner_text()
    assert body.locator("pre .word").first.inner_text() == "def"
    assert body.locator("td strong").inner_text() == "1"
    formulas = body.locator("code.formula").all_inner_texts()
    assert formulas[0] == "$E = mc^2$"
    assert "a_1 * b_1 * c" in formulas[1]
    assert page.locator("details.thought p").text_content() == "why"
    wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wider <= 0
    keep(page, f"answer-{width}-{scheme}")


@in_browser
def test_streamed_pieces_give_what_the_whole_gives(server, opened):
    page = opened(server)
    script = """async (text) => {
      const { GrowingMarkdown, rendered } = await import("/page/markdown.js");
      const whole = document.createElement("div"), grown = document.createElement("div");
      whole.append(...rendered(text));
      const shown = new GrowingMarkdown(grown);
      for (let end = 1; end <= text.length; end += 3) shown.show(text.slice(0, end));
      shown.show(text);
      return [whole.outerHTML, grown.outerHTML];
    }"""
    hostile = (
        "**" * 400 + "`" * 50 + "[" * 300 + "](" * 50 + "> " * 60 + "\n- " * 40 + "$$ \\( |---|"
    )
    for text in (ANSWER, hostile, "- a\n  - b\n    - c\n\n  text", "a\n```\nopen", ""):
        whole, grown = page.evaluate(script, text)
        assert whole == grown


@in_browser
def test_stop_edit_again_and_branches(server, opened):
    """With the model itself; keys alone send and stop."""
    page = opened(server)
    page.locator("#open-settings").click()
    page.locator("#max-tokens").fill("400")
    page.keyboard.press("Escape")
    say(page, "Hello, world!")
    page.locator("#stop:visible").wait_for()  # the answer of a quick machine ends soon
    page.keyboard.press("Escape")
    answered(page)
    assert page.locator("#status").inner_text() == "Stopped."
    page.locator("#open-settings").click()
    page.locator("#max-tokens").fill("5")
    page.locator("#settings button").click()
    page.locator("article.assistant").get_by_role("button", name="Answer again").click()
    page.get_by_text("2 of 2").wait_for()
    answered(page)
    assert "tokens" in page.locator("article.assistant .foot").inner_text()
    assert page.locator("#model-name").inner_text() == "tiny"
    second = page.locator("article.assistant .body").inner_text()
    page.get_by_role("button", name="Earlier version").click()
    page.get_by_text("1 of 2").wait_for()
    assert page.locator("article.assistant .body").inner_text() != second
    page.locator("#message").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.type(" Again?")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator("article.user .body").inner_text() == "Hello, world! Again?"
    page.locator("article.user").get_by_role("button", name="Earlier version").click()
    assert page.locator("article.user .body").inner_text() == "Hello, world!"
    keep(page, "branches")


@in_browser
def test_conversations_stay_in_the_browser(server, opened, tmp_path):
    page = opened(server, answers=[stream("One."), stream("Two."), stream("Three.")])
    say(page, "First question")
    answered(page)
    page.keyboard.press("Alt+n")
    say(page, "Second question")
    answered(page)
    page.reload()
    names = page.locator("#conversations li button:first-child")
    assert names.all_inner_texts() == ["Second question", "First question"]
    with page.expect_download() as loading:
        page.locator("#export").click()
    path = tmp_path / "kept.json"
    loading.value.save_as(path)
    for name in ("Second question", "First question"):
        page.get_by_role("button", name=f"Delete {name}").click()
    assert names.count() == 0
    page.locator("#file").set_input_files(path)
    names.first.wait_for()
    names.filter(has_text="First").click()
    assert page.locator("article.assistant .body").inner_text() == "One."
    for wrong in (
        "{",
        "{}",
        '{"nodes": {"root": {"children": ["root"]}}}',
        '{"conversations": [3]}',
    ):
        (tmp_path / "wrong.json").write_text(wrong)
        page.locator("#problem").evaluate("e => e.textContent = ''")
        page.locator("#file").set_input_files(tmp_path / "wrong.json")
        page.get_by_text("cannot be imported").wait_for()
    assert names.count() == 2


@in_browser
def test_settings_probabilities_and_a_schema(server, opened):
    page = opened(server)
    page.locator("#open-settings").click()
    page.locator("#max-tokens").fill("60")
    page.locator("#schema").fill('{"enum": ["yes", "no"]}')
    page.locator("#probabilities").check()
    page.keyboard.press("Escape")
    say(page, "Is it?")
    answered(page)
    page.get_by_text("MiB of memory").wait_for()
    text = page.locator("article.assistant .body").inner_text()
    assert text.strip('"“”') in ("yes", "no")
    page.get_by_text("Probabilities of tokens", exact=True).click()
    assert page.locator(".tokens").inner_text() == text
    page.reload()
    page.locator("#open-settings").click()
    assert page.locator("#max-tokens").input_value() == "60"
    page.locator("#schema").fill("{")
    page.keyboard.press("Escape")
    say(page, "Is it?")
    page.get_by_text("is not JSON").wait_for()


NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, select, a")]
  .filter(e => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()))
  .map(e => e.outerHTML)"""
CONTRAST = """() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.offsetParent) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(back(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([e.outerHTML.slice(0, 80), ratio]);
  }
  return low;
}"""


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_and_reach_it(server, opened, scheme):
    """Controls have names, texts have the contrast of WCAG AA, and Tab reaches the controls."""
    page = opened(server, scheme=scheme, answers=[stream(ANSWER)])
    say(page, "Hello")
    answered(page)
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(CONTRAST) == []
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )
    assert {"message", "send", "open-settings", "theme", "new", "Again", "Edit", "Copy"} <= reached
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "Theme: dark"
    assert page.evaluate(CONTRAST) == []


@in_browser
def test_a_phone_has_the_list_behind_a_button(server, opened):
    page = opened(server, width=390)
    assert not page.locator("#new").is_visible()
    page.locator("#menu").click()
    page.locator("#new:visible").wait_for()
    keep(page, "phone-list")
    page.keyboard.press("Escape")
    assert not page.locator("#new").is_visible()


def test_the_page_needs_no_key(folder):
    with running(folder, "--name", "tiny", "--context", "512", "--api-key", "secret") as one:
        with urllib.request.urlopen(one.url) as answer:
            assert answer.status == 200
        assert one.send("/v1/models")[0] == 401
