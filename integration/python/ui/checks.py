"""The page at /ui in a real browser, against a made-up router; each check is a function.

    python checks.py CHROMIUM NAME …                these checks
    python checks.py CHROMIUM all                   all of them
    python checks.py CHROMIUM real URL              a router that runs, with workers of this machine that are processes of their own
    python checks.py CHROMIUM screenshots FOLDER    the pictures of docs/ui.md

CHROMIUM is the browser's program. The last line is `ok`.
"""

import json
import os
import re
import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The checkout stays as it is.
sys.dont_write_bytecode = True

from playwright.sync_api import expect, sync_playwright

from browser import PATIENCE_MS, SIZES, Browser, live, rooms_of_a_day
from everybody import everything_by_keyboard, no_accessibility_violation, nothing_is_wider_than_the_page
from fake_router import FakeRouter
from many import ten_thousand_rooms
from one_room import (
    a_live_room_is_followed_to_its_end,
    a_locked_router_is_looked_at_with_its_key,
    an_eviction_is_explained_by_one_press,
    hostile_text_is_text,
    only_a_key_evicts,
)
from shown import (
    a_worker_that_vanishes_is_remembered,
    a_router_without_records,
    an_empty_cluster,
    budget_is_told_by_shape_and_words,
    rooms_move_through_phases,
    shows_pairs_rooms_and_nodes,
    the_router_goes_away_and_comes_back,
)


def real(browser, url):
    """A decode worker is stopped in the middle of a transfer: it is seen, and so is what became of the room, if the router
    keeps records of ended rooms."""
    with browser.page(url) as page, ThreadPoolExecutor() as threads:
        live(page)
        answer = threads.submit(complete, url, "transfer" * 50)
        cell = page.get_by_role("button", name=re.compile("^1 room, Transferring, from prefill-0 to decode-"))
        expect(cell).to_be_visible()
        victim = decode_of_the_room(page, url)
        os.kill(victim["pid"], signal.SIGSTOP)
        try:
            expect(page.get_by_role("list", name="Nodes that do not serve")).to_contain_text(victim["name"])
            explained(page, url, victim["name"])
            assert answer.result(PATIENCE_MS / 1000) == 200
        finally:
            os.kill(victim["pid"], signal.SIGCONT)


def complete(url, prompt):
    body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_MS / 1000) as response:
        return response.status


def decode_of_the_room(page, url):
    (room,) = page.request.get(f"{url}/innkeeper/v1/rooms").json()
    assert room["phase"] == "transferring", room
    return next(node for node in page.request.get(f"{url}/innkeeper/v1/nodes").json() if node["incarnation"] == room["decode"])


def explained(page, url, worker):
    if page.request.get(f"{url}/innkeeper/v1/ended?limit=1").status != 200:
        expect(page.get_by_text("The router keeps no list of ended rooms")).to_be_visible()
        print("the router keeps no records of ended rooms: nothing to explain")
        return
    row = page.locator(".ended tbody tr").filter(has_text=worker).first
    expect(row).to_be_visible()
    row.get_by_role("button", name="Explain room").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".waterfall .lane:not(.scale)")).to_have_count(3)
    expect(dialog).to_contain_text(worker)
    assert dialog.locator("p.headline").text_content().strip(), "no headline"
    assert dialog.locator(".bar[data-phase='transferring']").count() >= 1, "no transfer is drawn"
    print("explained:", dialog.locator("p.headline").text_content())


def screenshots(browser, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        for scheme in ["light", "dark"]:
            with FakeRouter() as router:
                rooms_of_a_day(router)
                with browser.page(router, size, color_scheme=scheme, reduced_motion="reduce") as page:
                    live(page)
                    expect(page.get_by_role("button", name="Explain room").first).to_be_visible()
                    page.screenshot(path=folder / f"page-{size}-{scheme}.png")
                    page.get_by_role("button", name="Explain room").first.click()
                    expect(page.locator(".waterfall")).to_be_visible()
                    page.screenshot(path=folder / f"explanation-{size}-{scheme}.png")


CHECKS = [
    shows_pairs_rooms_and_nodes,
    a_worker_that_vanishes_is_remembered,
    rooms_move_through_phases,
    budget_is_told_by_shape_and_words,
    an_empty_cluster,
    a_router_without_records,
    the_router_goes_away_and_comes_back,
    an_eviction_is_explained_by_one_press,
    a_live_room_is_followed_to_its_end,
    only_a_key_evicts,
    a_locked_router_is_looked_at_with_its_key,
    hostile_text_is_text,
    ten_thousand_rooms,
    no_accessibility_violation,
    nothing_is_wider_than_the_page,
    everything_by_keyboard,
]


def main(program, *arguments):
    named = {check.__name__: check for check in CHECKS}
    with sync_playwright() as playwright:
        browser = Browser(playwright, program)
        match arguments:
            case ("real", url):
                real(browser, url)
            case ("screenshots", folder):
                screenshots(browser, folder)
            case ("all",):
                run(browser, CHECKS)
            case _:
                run(browser, [named[name] for name in arguments])
    print("ok")


def run(browser, checks):
    for check in checks:
        began = time.monotonic()
        check(browser)
        print(f"{check.__name__}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
