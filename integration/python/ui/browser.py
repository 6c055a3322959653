"""A browser with the page in it, and what most checks do there."""

from contextlib import contextmanager

from playwright.sync_api import expect

from fake_router import cluster, ended_room, many_rooms

SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
# A starved machine needs long for what takes milliseconds.
PATIENCE_MS = 30_000

expect.set_options(timeout=PATIENCE_MS)


class Browser:
    """One browser for all checks of a run; a context of its own for each page."""

    def __init__(self, playwright, program):
        # Nothing of the outside: what a browser asks for by itself goes nowhere.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--no-first-run"]
        self.chromium = playwright.chromium.launch(executable_path=program, args=flags)

    @contextmanager
    def page(self, router, size="wide", **options):
        """An open page; at the end nothing went wrong on it, and it asked nobody but its router."""
        width, height = SIZES[size]
        context = self.chromium.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        wrong = []
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("console", lambda said: wrong.append(f"console: {said.text}") if said.type == "error" and "Failed to load resource" not in said.text else None)
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        base = router if isinstance(router, str) else router.url
        page.on("request", lambda request: None if request.url.startswith((base, "data:")) else wrong.append(f"asked elsewhere: {request.url}"))
        page.goto(f"{base}/ui")
        yield page
        assert not wrong, wrong
        context.close()


def live(page):
    expect(page.locator("#state")).to_have_attribute("data-state", "live")


def options(page):
    return page.get_by_role("option").filter(visible=True)


def rooms_of_a_day(router):
    """A cluster as it is on a usual day: rooms in all phases, one that is late, and some that were evicted."""
    router.nodes = cluster(2, 3)
    router.nodes[-1] |= {"state": "unreachable", "breaker": "open"}
    router.rooms = many_rooms(router.nodes, 60)
    router.rooms[0] |= {"deadline_ms": 700, "budget_ms": 5500, "phase": "transferring"}
    ways = [("transfer_stalled", "decode"), ("done", None), ("aborted", "nobody"), ("done", None), ("decode_lost", "decode"), ("done", None)]
    router.ended = [ended_room(n, router.nodes, *ways[n % len(ways)]) for n in range(30)]


def unlock(page, key):
    page.get_by_role("button", name="Unlock eviction …").click()
    page.get_by_label("Admin key").fill(key)
    page.get_by_label("Admin key").press("Enter")
    expect(page.get_by_role("button", name="Lock eviction", exact=True)).to_be_visible()


def evict(dialog):
    dialog.get_by_role("button", name="Evict this room").click()
    dialog.get_by_role("button", name="Evict now").click()
