"""A pair of engines on this machine, without a GPU: one computes prompts, the other reads their KV and produces tokens.

    pair.py start vllm|sglang   starts it, waits until both answer, and prints where it is described
    pair.py stop                ends it, also what a crash has left of it, and removes what it left in shared memory

`setup.sh` has installed it. The description is what `INNKEEPER_ENGINES` names for the scenarios: for each side its address and
the process of its core, the model's folder, the lease in seconds.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import processes

HERE = Path(__file__).resolve().parent
SIDES = ("prefill", "decode")
# How the engine of each kind calls the process that computes.
CORE = {"vllm": "EngineCore", "sglang": "scheduler"}
# On a machine that does other things too.
READY_WITHIN = 600
# What prefill's engine keeps KV for that nobody reads: long enough for a pull on a slow machine, short enough to be waited for.
LEASE = 6
CONTEXT = 8192
CHUNK = 512
PAGES = 96
BATCH = 8


def folder() -> Path:
    said = subprocess.run([HERE / "setup.sh", "path"], check=True, capture_output=True, text=True)
    return Path(said.stdout.strip())


def say(text: str) -> None:
    print(f"engines: {text}", file=sys.stderr)


def fail(text: str) -> None:
    raise SystemExit(f"engines: error: {text}")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


COMMON = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}


def vllm(root: Path, model: Path, side: str, port: int, meeting: int) -> tuple[list[str], dict[str, str]]:
    """`meeting`: where the other side asks for it."""
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if side == "prefill" else "kv_consumer",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"backends": ["UCX"], "kv_lease_duration": LEASE},
    }
    command = [str(root / "vllm/bin/vllm"), "serve", str(model), "--served-model-name", model.name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", str(CONTEXT), "--block-size", "128"]
    command += ["--max-num-batched-tokens", str(CHUNK), "--max-num-seqs", str(BATCH), "--num-gpu-blocks-override", str(PAGES)]
    command += ["--enable-scale-out", "--enable-request-id-headers", "--kv-transfer-config", json.dumps(transfer)]
    environment = {
        # GiB; PAGES of 128 tokens need less than half.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Else each side takes the same core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(meeting),
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        # Over shared memory the death of one side is not seen by the other.
        "UCX_TLS": "tcp",
    }
    return command, COMMON | environment


def sglang(root: Path, model: Path, side: str, port: int, meeting: int) -> tuple[list[str], dict[str, str]]:
    """`meeting`: prefill's bootstrap port."""
    command = [str(root / "sglang/bin/python"), str(HERE / "sglang_cpu.py"), "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", model.name, "--enable-metrics"]
    command += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    command += ["--disable-radix-cache", "--disable-overlap-schedule", "--skip-server-warmup"]
    command += ["--mem-fraction-static", "0.1", "--max-total-tokens", str(2 * CONTEXT), "--chunked-prefill-size", str(CHUNK)]
    command += ["--disaggregation-mode", side, "--disaggregation-transfer-backend", "mooncake"]
    command += ["--disaggregation-bootstrap-port", str(meeting)]
    if side == "decode":
        command += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    environment = {
        "LD_LIBRARY_PATH": str(root / "sglang/stub"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "MOONCAKE_PROTOCOL": "tcp",
        "SGLANG_HOST_IP": "127.0.0.1",
        "HOST_IP": "127.0.0.1",
    }
    return command, COMMON | environment


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/v1/models", timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def model_of(root: Path, kind: str) -> Path:
    model = root / "model"
    if not (model / "model.safetensors").exists():
        say(f"making a model in {model}")
        unfinished = root / "model.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run([root / kind / "bin/python", HERE / "model.py", unfinished], check=True)
        shutil.rmtree(model, ignore_errors=True)
        unfinished.rename(model)
    return model


def save(root: Path, name: str, content: object) -> None:
    (root / "run" / name).write_text(json.dumps(content, indent=1) + "\n")


def start(kind: str) -> None:
    root = folder()
    if not (root / kind / "whole").exists():
        fail(f"{kind} is not installed: {HERE}/setup.sh {kind} does it")
    stop()
    model = model_of(root, kind)
    run = root / "run"
    run.mkdir(parents=True)
    ports = free_ports(4)
    # At the same time: most of a minute is imports.
    began, sides = time.monotonic(), {}
    for at, side in enumerate(SIDES):
        meeting = ports[2 if kind == "sglang" else 2 + at]
        command, environment = {"vllm": vllm, "sglang": sglang}[kind](root, model, side, ports[at], meeting)
        session = processes.start(command, environment, run / side)
        sides[side] = {"session": session, "url": f"http://127.0.0.1:{ports[at]}", "segments": []}
        save(root, "sides.json", sides)
    described = {"engine": kind, "folder": str(model), "lease_seconds": LEASE, "bootstrap_port": ports[2]}
    for side, its in sides.items():
        described[side] = {"url": its["url"], "core": wait(kind, side, its, run / side)}
        its["segments"] = sorted(processes.segments(processes.of(its["session"], run / side)))
    save(root, "sides.json", sides)
    save(root, "pair.json", described)
    say(f"{kind} is up after {time.monotonic() - began:.0f} s")
    print(run / "pair.json")


def wait(kind: str, side: str, its: dict, where: Path) -> int:
    """Until it answers; the process of its core."""
    until = time.monotonic() + READY_WITHIN
    while not is_ready(its["url"]):
        if not processes.of(its["session"], where):
            fail(f"{side}'s engine ended by itself; its log: {where}/log")
        if time.monotonic() > until:
            fail(f"{side}'s engine does not answer after {READY_WITHIN} s; its log: {where}/log")
        time.sleep(1)
    cores = processes.named(processes.of(its["session"], where), CORE[kind])
    if len(cores) != 1:
        fail(f"{side}'s engine has {len(cores)} processes that are named like a core, not one")
    return cores[0]


def stop() -> None:
    run = folder() / "run"
    try:
        sides = json.loads((run / "sides.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        sides = {}
    for side, its in sides.items():
        processes.end(its["session"], run / side, set(its["segments"]))
    shutil.rmtree(run, ignore_errors=True)


def main() -> None:
    match sys.argv[1:]:
        case ["start", ("vllm" | "sglang") as kind]:
            start(kind)
        case ["stop"]:
            stop()
        case _:
            sys.exit("usage: pair.py start vllm|sglang\n       pair.py stop")


main()
