"""The ``anthropic`` SDK as a client of served versions, and errors as the SDK knows them.

python serve_anthropic.py MODEL
"""

import sys

import anthropic
from anthropic import Anthropic

model = sys.argv[1]
client = Anthropic(max_retries=0)
asked = {
    "model": model,
    "max_tokens": 8,
    "extra_body": {"temperature": 0},  # a field of the interface for which the SDK has no parameter any more
    "messages": [{"role": "user", "content": "47+85="}],
}
whole = client.messages.create(**asked)
text = "".join(part.text for part in whole.content)
assert whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
assert whole.stop_reason in ("end_turn", "max_tokens")
with client.messages.stream(**asked) as stream:
    assert "".join(stream.text_stream) == text
    assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


near = refused(anthropic.NotFoundError, lambda: client.messages.create(**asked | {"model": f"{model}x"}))
assert near.body["type"] == "error" and near.body["error"]["type"] == "not_found_error"
nobody = Anthropic(api_key="tml-nobody-0", max_retries=0)
refused(anthropic.AuthenticationError, lambda: nobody.messages.create(**asked))
print(text)
