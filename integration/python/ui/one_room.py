"""One room: its explanation, its life, its eviction. And strangers' text in all of it."""

from playwright.sync_api import expect

from browser import evict, live, options, rooms_of_a_day, unlock
from fake_router import FakeRouter, cluster, ended_room, explanation, hex16, room


def an_eviction_is_explained_by_one_press(browser):
    with FakeRouter(jaeger="http://traces.example:16686/") as router:
        rooms_of_a_day(router)
        row = router.ended[0]
        with browser.page(router) as page:
            page.get_by_role("button", name=f"Explain room {row['room']}").click()
            dialog = page.get_by_role("dialog", name=f"Room {row['room']}")
            told = explanation(row)
            for text in [told["headline"], told["client"], told["owed"], *told["evidence"], *told["did"], "decode: decode-0", "transfer stalled"]:
                expect(dialog).to_contain_text(text)
            link = dialog.get_by_role("link", name="Open the trace")
            expect(link).to_have_attribute("href", f"http://traces.example:16686/trace/{row['trace_id']}")
            assert "noopener" in link.get_attribute("rel")
            waterfall_is_true(page, told)
            page.get_by_text("router-0 (router): 4 entries").click()
            expect(dialog).to_contain_text("nothing verified for 5.5 s")
            dialog.get_by_role("button", name="Close").click()
            expect(dialog).to_be_hidden()
            # One of which nobody remembers anything.
            router.ended.insert(0, ended_room(500, router.nodes) | {"room": "not-there"})
            router.explain["not-there"] = None
            button = page.get_by_role("button", name="Explain room not-there")
            expect(button).to_be_visible()
            router.ended = router.ended[1:]
            button.click()
            expect(page.get_by_role("dialog")).to_contain_text("The router remembers nothing of this room")


def waterfall_is_true(page, told):
    """Each bar is where its times say, within a pixel; the node that did not answer has its reason instead."""
    bars = page.evaluate(
        """() => [...document.querySelectorAll(".waterfall .lane:not(.scale)")].map((lane) => {
            const track = lane.querySelector(".track").getBoundingClientRect();
            const bars = [...lane.querySelectorAll(".bar")].map((bar) => {
                const place = bar.getBoundingClientRect();
                return [bar.dataset.phase, (place.x - track.x) / track.width, place.width / track.width, track.width];
            });
            return { name: lane.querySelector(".who").textContent, bars, text: lane.textContent };
        })"""
    )
    assert [lane["name"] for lane in bars] == ["R router-0", "P prefill-0", "D decode-0"], bars
    times = [told["began_ms"], told["ended_ms"]]
    for part in told["parts"]:
        times += [phase["from_ms"] for phase in part["phases"]] + [phase["to_ms"] for phase in part["phases"] if phase["to_ms"]]
        times += [entry["at_ms"] for entry in part["entries"]]
    first, last = min(times), max(times)
    for lane, part in zip(bars, told["parts"]):
        if not part["answered"]:
            assert part["why"] in lane["text"] and not lane["bars"], lane
            continue
        assert len(lane["bars"]) == len(part["phases"])
        for (name, left, width, pixels), phase in zip(lane["bars"], part["phases"]):
            until = phase["to_ms"] or last
            expected = [(phase["from_ms"] - first) / (last - first), max((until - phase["from_ms"]) / (last - first), 3 / pixels)]
            assert name == phase["phase"], lane
            assert all(abs(a - b) * pixels < 4 for a, b in zip([left, width], expected)), (name, left, width, expected)


def a_live_room_is_followed_to_its_end(browser):
    with FakeRouter() as router:
        row = room(7, hex16(0x1000), hex16(0x2000), "transferring", 0.5)
        router.rooms = [row]
        with browser.page(router) as page:
            options(page).first.click()
            dialog = page.get_by_role("dialog", name=f"Room {row['room']}")
            expect(dialog).to_contain_text("prefill-0 → decode-0")
            expect(dialog).to_contain_text("50 %")
            row |= {"phase": "decoding", "deadline_ms": 550}
            expect(dialog).to_contain_text("Decoding")
            expect(dialog).to_contain_text("90 %")
            assert not dialog.get_by_role("button", name="Evict").count(), "evict without a key"
            router.evict(row["room"])
            expect(dialog).to_contain_text("An operator evicted the room.")


def only_a_key_evicts(browser):
    with FakeRouter() as router:
        rows = [room(n, hex16(0x1000), hex16(0x2000), "decoding", 0.5) for n in range(3)]
        router.rooms = list(rows)
        with browser.page(router) as page:
            unlock(page, "not this")
            page.get_by_label("Find").fill(rows[1]["room"])
            options(page).first.click()
            dialog = page.get_by_role("dialog")
            evict(dialog)
            expect(dialog).to_contain_text("The router refuses: the admin key is not right")
            assert router.evicted == []
            dialog.get_by_role("button", name="Close").click()
            page.get_by_role("button", name="Lock eviction", exact=True).click()
            unlock(page, router.key)
            options(page).first.click()
            # The first press only says what will happen.
            dialog.get_by_role("button", name="Evict this room").click()
            dialog.get_by_role("button", name="Keep it").click()
            assert router.evicted == []
            evict(dialog)
            expect(dialog).to_contain_text("An operator evicted the room.")
            assert router.evicted == [rows[1]["room"]]
            kept = page.evaluate("() => [localStorage.length, sessionStorage.length, document.cookie, location.href].join()")
            assert router.key not in kept and kept.startswith("0,0,,"), kept
            assert router.key not in page.content()
            page.reload()
            expect(page.get_by_role("button", name="Unlock eviction …")).to_be_visible()


def a_locked_router_is_looked_at_with_its_key(browser):
    with FakeRouter() as router:
        rooms_of_a_day(router)
        router.locked = True
        with browser.page(router) as page:
            expect(page.locator("#away")).to_contain_text("to those alone who have a key")
            assert options(page).count() == 0
            unlock(page, router.key)
            live(page)
            expect(page.locator("#away")).to_be_hidden()
            expect(options(page).first).to_be_visible()
            page.get_by_role("button", name="Explain room").first.click()
            expect(page.locator(".waterfall")).to_be_visible()
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Lock eviction", exact=True).click()
            expect(page.locator("#away")).to_contain_text("to those alone who have a key")


# === Strangers' text ===

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "{{7*7}}${7*7}",
    "\u202eevil\u0000\n",
    "x" * 4000,
]


def hostile_text_is_text(browser):
    for jaeger in ["javascript:alert(1)", HOSTILE[0]]:
        with FakeRouter(jaeger=jaeger) as router:
            fill_with(router, HOSTILE)
            with browser.page(router) as page:
                live(page)
                expect(page.locator(".ended tbody tr")).to_have_count(2 * len(HOSTILE))
                page.get_by_text(f"{len(router.nodes)} nodes").click()
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "text widens the page"
                for row in router.ended[: len(HOSTILE)]:
                    page.get_by_role("button", name=f"Explain room {row['room']}").click()
                    dialog = page.get_by_role("dialog")
                    expect(dialog.locator(".waterfall")).to_be_visible()
                    headline = dialog.locator("p.headline").text_content()
                    assert headline == row["headline"], (headline, row["headline"])
                    made = page.evaluate("document.querySelectorAll('main img, main script, main svg, dialog img, dialog script, dialog svg').length")
                    assert made == 0, f"{row['headline']} became elements"
                    links = page.evaluate("[...document.links].map((link) => link.protocol)")
                    assert all(link in ("http:", "https:") for link in links), links
                    page.keyboard.press("Escape")


def fill_with(router, texts):
    """A cluster in which every text that there is, is one of these."""
    router.nodes, router.rooms, router.ended = router.nodes[:1], [], []
    plain = cluster(1, 1)
    for number, text in enumerate(texts):
        prefill, decode = hex16(0x1000 + number), hex16(0x2000 + number)
        wrong = {"name": text, "state": text, "breaker": "open", "avoided_peers": [text]}
        router.nodes += [plain[1] | wrong | {"incarnation": prefill}, plain[2] | wrong | {"incarnation": decode}]
        router.rooms += [room(number, prefill, decode, "decoding", owes=text), room(100 + number, text, decode, "queued")]
        router.rooms.append(room(200 + number, prefill, text, "decoding") | {"room": f"{number}{text}", "phase": text})
        row = ended_room(number, plain, verdict=text, blame=text, headline=text, trace_id=text, blame_node=text)
        told = explanation(ended_room(number, plain))
        told |= dict.fromkeys(["headline", "client", "owed", "owes_what", "trace_id", "verdict", "blame", "blame_name", "next_room"], text)
        told |= {"evidence": [text], "did": [text]}
        told["parts"][0] |= {"name": text, "entries": [{"at_ms": told["began_ms"], "what": text, "detail": text}]}
        told["parts"][2] |= {"why": text}
        router.explain[row["room"]] = told
        router.ended.append(row)
    router.ended += [row | {"room": row["headline"]} for row in router.ended]
