"""For everybody: screen readers, keyboards, small screens."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from browser import SIZES, live, options, rooms_of_a_day, unlock
from fake_router import FakeRouter


def no_accessibility_violation(browser):
    axe = Axe()
    for size in SIZES:
        for scheme in ["light", "dark"]:
            with FakeRouter() as router:
                rooms_of_a_day(router)
                # axe makes functions of text, which the policy of the page forbids.
                with browser.page(router, size, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True) as page:
                    live(page)
                    page.get_by_text("6 nodes, 1 with trouble").click()
                    check(axe, page, f"{size} {scheme}")
                    page.get_by_role("button", name="Explain room").first.click()
                    expect(page.locator(".waterfall")).to_be_visible()
                    page.get_by_text("router-0 (router)").click()
                    check(axe, page, f"{size} {scheme}, an explanation")
                    page.keyboard.press("Escape")
                    if size == "wide":
                        rarer_states(axe, page, router, scheme)


def rarer_states(axe, page, router, scheme):
    unlock(page, router.key)
    options(page).first.click()
    page.get_by_role("button", name="Evict this room").click()
    check(axe, page, f"{scheme}, a live room")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Lock eviction", exact=True).click()
    page.get_by_role("button", name="Unlock eviction …").click()
    check(axe, page, f"{scheme}, the key")
    page.keyboard.press("Escape")
    router.away()
    expect(page.get_by_role("alert")).to_be_visible()
    check(axe, page, f"{scheme}, the router away")


def check(axe, page, where):
    results = axe.run(page)
    assert results.violations_count == 0, f"{where}: {results.generate_report()}"
    passed = len(results.response["passes"])
    assert passed > 15, f"{where}: axe looked at {passed} rules only"


def nothing_is_wider_than_the_page(browser):
    for size in SIZES:
        with FakeRouter() as router:
            rooms_of_a_day(router)
            with browser.page(router, size) as page:
                live(page)
                fits = "document.documentElement.scrollWidth <= innerWidth"
                assert page.evaluate(fits), size
                page.get_by_role("button", name="Explain room").first.click()
                expect(page.locator(".waterfall")).to_be_visible()
                assert page.evaluate("(() => { const d = document.querySelector('dialog[open]'); return d.scrollWidth <= d.clientWidth })()"), size
                # What is pressed is large enough to be hit.
                small = page.evaluate("[...document.querySelectorAll('button')].filter((b) => b.offsetParent && (b.offsetHeight < 24 || b.offsetWidth < 24)).map((b) => b.textContent)")
                assert small == [], (size, small)
                broken = page.evaluate("[...document.querySelectorAll('.ended button, .ended time')].filter((e) => e.getClientRects().length > 1 || e.offsetHeight > 60).length")
                assert broken == 0, f"{size}: {broken} times or buttons are broken into lines"


def everything_by_keyboard(browser):
    with FakeRouter() as router:
        rooms_of_a_day(router)
        with browser.page(router) as page:
            live(page)
            order = tab_through(page)
            landmarks = ["To live rooms", "To ended rooms", "Pause", "Unlock eviction …", "rooms-find", "rooms-phase", "rooms-order", "rooms", "ended-evictions"]
            found = [stop for stop in order if stop in landmarks]
            assert found == landmarks, order
            assert order.count("Explain") == len([row for row in router.ended if row["verdict"] not in ("done", "aborted")]), order
            # A skip link leads to its heading.
            page.reload()
            live(page)
            page.keyboard.press("Tab")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            expect(page.locator("#ended-title")).to_be_focused()
            page.keyboard.press("Tab")
            page.keyboard.press("Tab")
            button = page.get_by_role("button", name="Explain room").first
            expect(button).to_be_focused()
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"the focus is not seen: {outline}"
            page.keyboard.press("Enter")
            dialog = page.get_by_role("dialog")
            expect(dialog).to_be_visible()
            expect(page.locator("#details-title")).to_be_focused()
            # The page refreshes below and takes no focus away.
            page.wait_for_timeout(2500)
            expect(page.locator("#details-title")).to_be_focused()
            for _ in range(12):
                page.keyboard.press("Tab")
                inside = page.evaluate("document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))")
                assert inside, "the focus leaves the dialog"
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
            expect(button).to_be_focused()
            by_arrows(page, router)


def tab_through(page):
    """What has the focus, from the first to the last; a thing by its id or its text."""
    order = []
    for _ in range(200):
        page.keyboard.press("Tab")
        stop = page.evaluate("(() => { const a = document.activeElement; return a === document.body ? null : a.id && a.localName !== 'button' ? a.id : a.textContent.trim() })()")
        if stop is None or (order and stop == "To live rooms"):
            break
        order.append(stop)
    return order


def by_arrows(page, router):
    box = page.get_by_role("listbox", name="Live rooms")
    box.focus()
    worst = sorted(router.rooms, key=lambda row: (row["deadline_ms"] / row["budget_ms"], row["room"]))
    expect(box).to_have_attribute("aria-activedescendant", f"room-{worst[0]['room']}")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", f"room-{worst[2]['room']}")
    # The room that was chosen stays chosen while others pass it.
    worst[5]["deadline_ms"] = 0
    expect(page.locator('[role="option"][aria-posinset="1"]')).to_have_attribute("id", f"room-{worst[5]['room']}")
    expect(box).to_have_attribute("aria-activedescendant", f"room-{worst[2]['room']}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=f"Room {worst[2]['room']}")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_focused()
