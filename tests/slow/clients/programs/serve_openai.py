"""The ``openai`` SDK as a client of served versions: every interface, and errors as the SDK knows them.

python serve_openai.py MODEL
"""

import sys

import openai
from openai import OpenAI

model = sys.argv[1]
client = OpenAI(max_retries=0)
assert model in {one.id for one in client.models.list()} | {model}
messages = [{"role": "user", "content": "47+85="}]


def asked(**wishes):
    return client.chat.completions.create(
        model=model, messages=messages, **({"max_tokens": 8, "temperature": 0} | wishes)
    )


whole = asked()
text = whole.choices[0].message.content
assert whole.usage.prompt_tokens > 0 and whole.usage.completion_tokens > 0
chunks = list(asked(stream=True, stream_options={"include_usage": True}))
assert "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices) == text
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

several = [[choice.message.content for choice in asked(n=3, seed=7, temperature=1).choices] for _ in "ab"]
assert several[0] == several[1] and len(several[0]) == 3, "the same seed says the same"

likely = asked(logprobs=True, top_logprobs=3).choices[0].logprobs.content
assert all(len(token.top_logprobs) == 3 for token in likely)
assert all(token.logprob <= token.top_logprobs[0].logprob + 1e-4 for token in likely)
assert abs(likely[0].logprob - likely[0].top_logprobs[0].logprob) < 1e-4, "without temperature it is the likeliest"

stopped = asked(stop=[text[1]] if len(text) > 1 else ["x"], max_tokens=8).choices[0].message.content
assert not text[1:] or stopped == text[: text.index(text[1])]

response = client.responses.create(model=model, input="47+85=", max_output_tokens=16, temperature=0)
assert response.output_text.startswith(text[:1])

echoed = client.completions.create(
    model=model, prompt=[[40, 41, 42], [50, 51]], echo=True, logprobs=1, max_tokens=1, temperature=0
)
for choice, length in zip(echoed.choices, (3, 2), strict=True):
    assert len(choice.logprobs.token_logprobs) == length + 1 and choice.logprobs.token_logprobs[0] is None
    assert all(number < 0 for number in choice.logprobs.token_logprobs[1:])


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


near = refused(openai.NotFoundError, lambda: client.chat.completions.create(model=f"{model}x", messages=messages))
assert model in near.message or "/v1/models" in near.message, near.message
refused(openai.AuthenticationError, lambda: OpenAI(api_key="tml-nobody-0", max_retries=0).models.list())
long = [{"role": "user", "content": "1" * 5000}]
beyond = refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=long))
assert beyond.code == "context_length_exceeded", beyond
print(text)
