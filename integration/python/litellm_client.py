"""LiteLLM against a router: python litellm_client.py http://127.0.0.1:PORT MODEL CONTEXT"""

import asyncio
import os
import sys

# It looks for a table of prices in the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

base, model, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
litellm.telemetry = False
common = {"api_base": f"{base}/v1", "api_key": "none", "num_retries": 0, "max_retries": 0, "timeout": 60}


def chat(**changes):
    arguments = {"model": f"openai/{model}", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    return litellm.completion(**(common | arguments | changes))


def complete(**changes):
    arguments = {"model": f"text-completion-openai/{model}", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    return litellm.text_completion(**(common | arguments | changes))


def raises(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


answer = chat(temperature=0)
text = answer.choices[0].message.content
assert text and answer.choices[0].message.role == "assistant", answer
assert answer.choices[0].finish_reason == "length", answer
assert answer.usage.completion_tokens == 8, answer
assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8, answer

chunks = list(chat(temperature=0, stream=True, stream_options={"include_usage": True}))
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert streamed == text, (streamed, text)
usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
assert len(usages) == 1 and usages[0].completion_tokens == 8, chunks
assert usages[0].prompt_tokens == answer.usage.prompt_tokens, (usages, answer)
assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == ["length"]

two = chat(temperature=1, seed=7, n=2, top_p=0.9, logprobs=True, top_logprobs=2)
assert len(two.choices) == 2, two
assert all(len(choice.logprobs.content) == len(choice.logprobs["content"]) > 0 for choice in two.choices), two
again = chat(temperature=1, seed=7, n=2, top_p=0.9)
assert [choice.message.content for choice in two.choices] == [choice.message.content for choice in again.choices]


async def at_once():
    asks = [
        litellm.acompletion(model=f"openai/{model}", messages=[{"role": "user", "content": f"{number}"}], max_tokens=4, **common)
        for number in range(8)
    ]
    return await asyncio.gather(*asks)


assert [answer.usage.completion_tokens for answer in asyncio.run(at_once())] == [4] * 8

completion = complete()
assert completion.choices[0].text and completion.choices[0].finish_reason == "length", completion
assert completion.usage.completion_tokens == 8, completion
pieces = "".join(chunk.choices[0].text or "" for chunk in complete(stream=True))
assert pieces == completion.choices[0].text, (pieces, completion)
stopped = complete(stop=[completion.choices[0].text[2:4]])
assert stopped.choices[0].finish_reason == "stop", stopped

error = raises(litellm.NotFoundError, lambda: chat(model="openai/no-such-model"))
assert error.status_code == 404 and "no-such-model" in error.message, error
raises(litellm.ContextWindowExceededError, lambda: chat(messages=[{"role": "user", "content": "x" * (context + 1)}]))
error = raises(litellm.BadRequestError, lambda: chat(max_tokens=-1))
assert error.status_code == 400 and "max_tokens" in error.message, error
error = raises(litellm.BadRequestError, lambda: chat(frequency_penalty=1))
assert "frequency_penalty" in error.message, error
print("ok")
