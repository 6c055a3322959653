"""OpenAI's own client against a router: python openai_sdk.py http://127.0.0.1:PORT MODEL CONTEXT"""

import sys

import openai

base, model, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=60)


def raises(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def chat(**changes):
    arguments = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    return client.chat.completions.create(**(arguments | changes))


def complete(**changes):
    arguments = {"model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    return client.completions.create(**(arguments | changes))


models = client.models.list()
assert [card.id for card in models] == [model], models
assert client.models.retrieve(model).id == model

answer = chat(temperature=0)
assert answer.choices[0].message.role == "assistant", answer
assert answer.choices[0].message.content, answer
assert answer.usage.completion_tokens == 8, answer
assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8, answer

chunks = list(chat(temperature=0, stream=True, stream_options={"include_usage": True}))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == answer.choices[0].message.content, (text, answer)
counted = lambda usage: (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
assert counted(chunks[-1].usage) == counted(answer.usage), (chunks[-1], answer)
assert answer.usage.prompt_tokens_details.cached_tokens <= answer.usage.prompt_tokens, answer
assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1), chunks
assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length", chunks

completion = complete()
assert completion.choices[0].text and completion.choices[0].finish_reason == "length", completion
pieces = "".join(chunk.choices[0].text for chunk in complete(stream=True))
assert pieces == completion.choices[0].text, (pieces, completion)

assert complete(temperature=1, seed=7).choices == complete(temperature=1, seed=7).choices

error = raises(openai.NotFoundError, lambda: chat(model="no-such-model"))
assert error.code == "model_not_found" and error.status_code == 404, error
error = raises(openai.BadRequestError, lambda: chat(messages=[{"role": "user", "content": "x" * (context + 1)}]))
assert error.code == "context_length_exceeded", error
error = raises(openai.BadRequestError, lambda: chat(max_tokens=-1))
assert error.code == "integer_below_min_value" and error.param == "max_tokens", error
error = raises(openai.BadRequestError, lambda: chat(temperature=9))
assert error.param == "temperature", error
print("ok")
