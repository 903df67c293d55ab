"""Time and bytes of the board in a browser with an empty cache, until a click works, against a static file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

from playwright.async_api import Browser, Response, StorageState, async_playwright

from benchmarks.measure import Result, Side, compare
from benchmarks.mission_kit import MissionKit
from benchmarks.server import environment, fill, up
from chargehand.identity.accounts import create_login_code
from chargehand.reports.reading import StateReader

AIM = 0.8
AIM_BYTES = 250_000
_MISSIONS = 1000
_ROW, _BUTTON = "a[data-row]", ".tools .primary"
# Clicks as soon as missions are shown, until a dialog opens: `performance.now` counts from the navigation.
_CLICKS = f"""
const look = () => {{
  if (document.querySelector("dialog[open]")) window.usable = performance.now();
  else {{
    if (document.querySelector("{_ROW}")) document.querySelector("{_BUTTON}")?.click();
    requestAnimationFrame(look);
  }}
}};
look();
"""
_IS_USABLE = """new Promise((resolve) => {
  const look = () => (window.usable ? resolve(window.usable) : requestAnimationFrame(look));
  look();
})"""


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Open the board in a new browser context each time; measure nothing if there is no browser."""
    path = shutil.which("chromium")
    if path is None:
        print("first_view: no chromium in PATH, left out", file=sys.stderr)
        return []
    place = kit.place / "first-view"
    place.mkdir()
    environ = environment(place)
    with StateReader.open(environ=environ, cwd=place) as reader:
        fill(reader, missions=_MISSIONS, events=1)
        code = create_login_code(reader).secret
    with up(environ, place) as url:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            entered = await _log_in(browser, f"{url}/login#{code}")
            sides = [
                Side(name="the board, until a click acts", sample=_usable(browser, url, entered)),
                Side(name="/icon.svg, loaded", sample=_loaded(browser, f"{url}/icon.svg", entered)),
            ]
            found = await compare("first_view", "empty cache", sides, rounds=rounds, aim=AIM)
            size = await _transferred(browser, url, entered)
            await browser.close()
    return [replace(found, note=f"{size:,} bytes arrived (aim {AIM_BYTES:,}); {_MISSIONS:,} missions")]


async def _log_in(browser: Browser, link: str) -> StorageState:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(link)
    await page.wait_for_selector(_ROW)
    entered = await context.storage_state()
    await context.close()
    return entered


def _usable(browser: Browser, url: str, entered: StorageState) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        context = await browser.new_context(storage_state=entered)
        page = await context.new_page()
        await page.add_init_script(_CLICKS)
        await page.goto(url)
        took = await page.evaluate(_IS_USABLE)
        await context.close()
        return float(took) / 1000

    return sample


def _loaded(browser: Browser, address: str, entered: StorageState) -> Callable[[], Awaitable[float]]:
    async def sample() -> float:
        context = await browser.new_context(storage_state=entered)
        page = await context.new_page()
        await page.goto(address)
        took = await page.evaluate("performance.getEntriesByType('navigation')[0].loadEventStart")
        await context.close()
        return float(took) / 1000

    return sample


async def _transferred(browser: Browser, url: str, entered: StorageState) -> int:
    """Return the bytes of all responses, heads included, that the board needs until its missions are shown."""
    context = await browser.new_context(storage_state=entered)
    page = await context.new_page()
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    await page.goto(url)
    await page.wait_for_selector(_ROW)
    total = 0
    for answer in answers:
        # The stream of events has no end.
        if "/events" not in answer.url:
            sizes = await answer.request.sizes()
            total += sizes["responseBodySize"] + sizes["responseHeadersSize"]
    await context.close()
    return total
