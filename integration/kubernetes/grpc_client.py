#!/usr/bin/env python3
"""One call of `Generate` with the stock gRPC client, made of the published contract; what came of it, as JSON.

    grpc_client.py PROTO TARGET MODEL PROMPT TOKENS [CANCEL_AFTER]

After CANCEL_AFTER messages it says `cancels` on a line of its own, waits for a line of standard input, and cancels the call.
"""

import importlib
import json
import pathlib
import sys
import tempfile
import time
import uuid

import grpc
from grpc_tools import protoc


def contract(proto):
    """The modules that the compiler makes of it."""
    path = pathlib.Path(proto).resolve()
    with tempfile.TemporaryDirectory() as folder:
        words = ["protoc", f"--proto_path={path.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(path)]
        if protoc.main(words) != 0:
            sys.exit(f"protoc does not take {path}")
        sys.path.insert(0, folder)
        return importlib.import_module(f"{path.stem}_pb2"), importlib.import_module(f"{path.stem}_pb2_grpc")


def main():
    proto, target, model, prompt, tokens = sys.argv[1:6]
    cancel_after = int(sys.argv[6]) if len(sys.argv) > 6 else None
    messages, services = contract(proto)
    rid = f"guest-{uuid.uuid4().hex[:12]}"
    said = {"rid": rid, "times": [], "text": "", "usage": None, "error": None}
    with grpc.insecure_channel(target) as channel:
        request = messages.GenerateRequest(model=model, prompt=prompt, max_tokens=int(tokens), temperature=0)
        began = time.monotonic()
        call = services.InferenceStub(channel).Generate(request, timeout=120, metadata=(("x-request-id", rid),))
        try:
            for reply in call:
                said["times"].append(round(time.monotonic() - began, 4))
                kind = reply.WhichOneof("reply")
                if kind == "delta":
                    said["text"] += reply.delta.text
                elif kind == "usage":
                    said["usage"] = reply.usage.completion_tokens
                if cancel_after is not None and len(said["times"]) == cancel_after:
                    print("cancels", flush=True)
                    sys.stdin.readline()
                    call.cancel()
        except grpc.RpcError as wrong:
            said["error"] = f"{wrong.code().name}: {wrong.details()}"
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
