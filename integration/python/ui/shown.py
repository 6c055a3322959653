"""What is shown of rooms, pairs, nodes, and of a router that is away."""

import re

from playwright.sync_api import expect

from browser import live, options, rooms_of_a_day
from fake_router import PHASES, FakeRouter, hex16, room


def shows_pairs_rooms_and_nodes(browser):
    with FakeRouter() as router:
        rooms_of_a_day(router)
        one = router.rooms[5]
        with browser.page(router) as page:
            live(page)
            expect(page.locator("#totals")).to_contain_text("Live rooms60")
            expect(page.locator("#totals")).to_contain_text("4 of 5")
            expect(page.get_by_role("list", name="Nodes that do not serve")).to_contain_text("decode-2: unreachable; avoided")
            table = page.get_by_role("table", name="Pairs")
            pairs = {(row["prefill"], row["decode"]) for row in router.rooms}
            expect(table.get_by_role("row")).to_have_count(1 + len(pairs))
            of_pair = [row for row in router.rooms if (row["prefill"], row["decode"]) == (one["prefill"], one["decode"])]
            in_phase = sum(row["phase"] == one["phase"] for row in of_pair)
            cell = table.get_by_role("button", name=re.compile(f"^{in_phase} rooms?, .*{cell_name(router, one)}", re.I))
            cell.click()
            expect(page.locator("#rooms-count")).to_have_text(re.compile(f"^{in_phase} rooms? of 60, "))
            expect(options(page)).to_have_count(in_phase)
            page.get_by_role("button", name="Show all").click()
            page.get_by_label("Find").fill(one["room"])
            expect(options(page)).to_have_count(1)
            page.get_by_label("Find").fill("no such room")
            expect(page.get_by_text("No live room fits.")).to_be_visible()
            nodes = page.get_by_text("6 nodes, 1 with trouble")
            nodes.click()
            expect(page.get_by_role("region", name="Nodes").get_by_role("row")).to_have_count(7)


def a_worker_that_vanishes_is_remembered(browser):
    with FakeRouter() as router:
        with browser.page(router) as page:
            live(page)
            trouble = page.get_by_role("list", name="Nodes that do not serve")
            expect(trouble).to_be_hidden()
            vanished = router.nodes.pop()
            expect(trouble).to_contain_text("decode-1: gone since")
            # Its next life.
            router.nodes.append(vanished | {"incarnation": hex16(0x2222)})
            expect(trouble).to_be_hidden()


def cell_name(router, row):
    names = {node["incarnation"]: node["name"] for node in router.nodes}
    phase = row["phase"].replace("_", " ")
    return f"{phase}, from {names[row['prefill']]} to {names[row['decode']]}"


def rooms_move_through_phases(browser):
    """A mark is the same element in its next phase, and flies there, unless motion is not wanted."""
    for motion, flies in [("no-preference", True), ("reduce", False)]:
        with FakeRouter() as router:
            row = room(1, hex16(0x1000), hex16(0x2000), "queued", 0.1)
            router.rooms = [row]
            with browser.page(router, reduced_motion=motion) as page:
                mark = page.locator(".marks .dot")
                expect(mark).to_have_count(1)
                page.evaluate(
                    """() => {
                        const mark = document.querySelector(".marks .dot");
                        mark.dataset.same = "yes";
                        window.flights = 0;
                        const animate = Element.prototype.animate;
                        Element.prototype.animate = function (...all) { window.flights += 1; return animate.apply(this, all); };
                    }"""
                )
                for phase in PHASES[1:]:
                    row["phase"] = phase
                    cell = page.locator(f'.cell[data-phase="{phase}"]')
                    expect(cell.locator(".dot")).to_have_attribute("data-same", "yes")
                    expect(cell.get_by_role("button")).to_have_text("1")
                flights = page.evaluate("window.flights")
                assert (flights == len(PHASES) - 1) == flies and (flies or flights == 0), (motion, flights)
                router.rooms = []
                expect(mark).to_have_count(0)
                expect(page.get_by_text("No room is open.")).to_be_visible()


def budget_is_told_by_shape_and_words(browser):
    with FakeRouter() as router:
        shares = [0.1, 0.6, 0.9, 1.0]
        router.rooms = [room(n, hex16(0x1000), hex16(0x2000), "decoding", share) for n, share in enumerate(shares)]
        with browser.page(router) as page:
            expect(options(page)).to_have_count(4)
            said = options(page).all_inner_texts()
            assert [re.search(r"(\d+) %", text).group(1) for text in said] == ["100", "90", "60", "10"], said
            looks = page.evaluate(
                """() => [...document.querySelectorAll("#rooms .room:not([hidden]) .dot")].map((dot) => {
                    const style = getComputedStyle(dot);
                    return [style.clipPath, style.borderRadius, style.width].join();
                })"""
            )
            assert len(set(looks)) == 4, f"the shapes are the same: {looks}"


def an_empty_cluster(browser):
    with FakeRouter() as router:
        router.nodes = router.nodes[:1]
        with browser.page(router) as page:
            live(page)
            for text in ["No room is open.", "No live room fits.", "No room has ended yet.", "1 node, all serve"]:
                expect(page.get_by_text(text)).to_be_visible()
            expect(page.locator("#totals")).to_contain_text("0 of 0")


def a_router_without_records(browser):
    with FakeRouter() as router:
        rooms_of_a_day(router)
        router.keeps_ended = False
        with browser.page(router) as page:
            expect(page.get_by_text("The router keeps no list of ended rooms")).to_be_visible()
            live(page)
            expect(page.locator("#totals")).to_contain_text("Live rooms60")
            router.keeps_ended = True
            expect(page.get_by_role("button", name="Explain room").first).to_be_visible()


def the_router_goes_away_and_comes_back(browser):
    with FakeRouter() as router:
        rooms_of_a_day(router)
        with browser.page(router) as page:
            live(page)
            for leave, why in [(router.away, "it cannot be reached"), (router.hung, "no answer within 5 s")]:
                leave()
                alert = page.get_by_role("alert")
                expect(alert).to_contain_text("The router does not answer since")
                expect(alert).to_contain_text(why)
                expect(page.locator("#state")).to_have_attribute("data-state", "away")
                # What was there is still there.
                expect(page.locator("#totals")).to_contain_text("Live rooms60")
                router.rooms = router.rooms[:-1] + [room(99_999, hex16(0x1000), hex16(0x2000))]
                router.back()
                live(page)
                expect(alert).to_be_hidden()
                expect(page.get_by_role("status").first).to_have_text("The router answers again.")
            page.get_by_role("button", name="Pause").click()
            router.rooms = []
            asked = len(router.asked)
            page.wait_for_timeout(2500)
            assert len(router.asked) <= asked + 3, "a paused page asks"
            expect(page.locator("#totals")).to_contain_text("Live rooms60")
            page.get_by_role("button", name="Pause").click()
            expect(page.locator("#totals")).to_contain_text("Live rooms0")
