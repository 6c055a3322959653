#!/usr/bin/env python3
"""Load on a running release, until standard input ends; then what became of it, as JSON.

    load.py URL MODEL CLIENTS

Each client asks again and again, each time on a connection of its own, every second request as a stream. The same prompt must
always get the same answer, whatever happens behind the router.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse
import uuid

TOKENS = 40
# Far above what a request takes, and far below its deadline: what takes longer has got stuck.
LIMIT = 60


class Told:
    """What the clients saw."""

    def __init__(self):
        self.lock = threading.Lock()
        self.sent, self.failed, self.slowest = 0, [], 0.0
        self.answers, self.ids = {}, []

    def add(self, rid, prompt, began, text, error):
        took = time.monotonic() - began
        with self.lock:
            self.sent += 1
            self.ids.append(rid)
            self.slowest = max(self.slowest, took)
            if error is None and self.answers.setdefault(prompt, text) != text:
                error = f"another answer than before: {text!r} instead of {self.answers[prompt]!r}"
            if error is not None:
                self.failed.append({"id": rid, "at": time.strftime("%H:%M:%S"), "after_s": round(took, 2), "why": error})

    def report(self):
        with self.lock:
            return {"sent": self.sent, "ids": self.ids, "failed": self.failed, "slowest_s": round(self.slowest, 2)}


def ask(place, model, prompt, stream, rid):
    """The text of one answer; raises with what went wrong."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream}
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=LIMIT)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", "x-request-id": rid})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"{response.status}: {response.read().decode()}")
        if not stream:
            return json.loads(response.read())["choices"][0]["text"]
        text, done = "", False
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                done = True
                break
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"within the stream: {event['error']}")
            text += event["choices"][0]["text"] if event["choices"] else ""
        if not done:
            raise ValueError("the stream broke off without its end")
        return text
    finally:
        connection.close()


def client(number, place, model, told, stop):
    turn = number
    while not stop.is_set():
        turn += 1
        prompt = f"Guest {turn % 8} asks for a room."
        began, text, error, rid = time.monotonic(), "", None, f"load-{uuid.uuid4().hex[:12]}"
        try:
            text = ask(place, model, prompt, turn % 2 == 0, rid)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as wrong:
            error = f"{type(wrong).__name__}: {wrong}"
            # Whoever is refused does not hammer.
            stop.wait(0.2)
        told.add(rid, prompt, began, text, error)


def main():
    url, model, clients = sys.argv[1:]
    place, told, stop = urllib.parse.urlparse(url), Told(), threading.Event()
    threads = [threading.Thread(target=client, args=(number, place, model, told, stop)) for number in range(int(clients))]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps(told.report()))


if __name__ == "__main__":
    main()
