"""Sees that a pair works, before anything of Innkeeper stands in front of it: what both engines say together is what one says
alone, and the KV was read and not computed again. It is also the first contact of the two, which may take longer than they wait.

    check.py PAIR.json
"""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROMPT = [300 + at * 7 % 600 for at in range(300)]
TOKENS = 8
# vLLM's handshake gives up after 5 s, which a busy machine may need.
CONTACTS = 4
LIMIT = 120


def ask(url: str, path: str, body: dict | None = None, headers: dict[str, str] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"} | (headers or {}))
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        return answer.read().decode()


def read_from_other(url: str) -> float:
    """Prompt tokens whose KV a vLLM engine has read from another."""
    for line in ask(url, "/metrics").splitlines():
        if line.startswith("vllm:prompt_tokens_by_source_total{") and 'source="external_kv_transfer"' in line:
            return float(line.split()[-1])
    return 0


def vllm(pair: dict) -> str:
    prefill, decode = pair["prefill"]["url"], pair["decode"]["url"]
    model = json.loads(ask(decode, "/v1/models"))["data"][0]["id"]
    common = {"model": model, "prompt": PROMPT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def ids(url: str, **more: object) -> tuple[list[int], dict]:
        answer = json.loads(ask(url, "/v1/completions", common | more, {"X-Request-Id": "check"}))
        return answer["choices"][0]["token_ids"], answer.get("kv_transfer_params") or {}

    # Alone it must not find what it has read before.
    alone, _ = ids(decode, max_tokens=TOKENS, cache_salt="alone")
    before = read_from_other(decode)
    _, ticket = ids(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    together, _ = ids(decode, max_tokens=TOKENS, cache_salt=str(time.monotonic()), kv_transfer_params=ticket)
    if together != alone:
        raise SystemExit(f"engines: error: together they say {together}, alone one says {alone}")
    read = read_from_other(decode) - before
    if read < len(PROMPT) - 1:
        raise SystemExit(f"engines: error: of {len(PROMPT)} tokens the KV of {read:.0f} was read: the rest was computed again")
    return f"{together}, KV of {read:.0f} tokens read"


def sglang(pair: dict) -> str:
    room = time.time_ns() % (1 << 62) + 1
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": pair["bootstrap_port"],
        "bootstrap_room": room,
    }
    with ThreadPoolExecutor() as legs:
        answers = [legs.submit(ask, pair[side]["url"], "/generate", body) for side in ("prefill", "decode")]
        prefill, decode = (json.loads(answer.result()) for answer in answers)
    said = decode["output_ids"]
    if len(said) != TOKENS or prefill["output_ids"][:1] != said[:1]:
        raise SystemExit(f"engines: error: prefill's engine says {prefill['output_ids']}, decode's {said}")
    return str(said)


def main() -> None:
    pair = json.loads(Path(sys.argv[1]).read_text())
    works: Callable[[dict], str] = {"vllm": vllm, "sglang": sglang}[pair["engine"]]
    for contact in range(1, CONTACTS + 1):
        try:
            began = time.monotonic()
            print(f"engines: the pair works: {works(pair)}, in {time.monotonic() - began:.1f} s")
            return
        except (urllib.error.URLError, OSError) as error:
            said = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
            print(f"engines: contact {contact} of {CONTACTS} failed: {error} {said}", file=sys.stderr)
            time.sleep(2)
    raise SystemExit("engines: error: the two engines do not work together; see above")


main()
