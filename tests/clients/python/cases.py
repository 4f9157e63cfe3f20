"""openai-python and LiteLLM against a running service: one line a case, `ok NAME` or `not ok NAME: why`.

Usage: cases.py BASE_URL KEY, with the keys BATON_NO_CHAT_KEY and BATON_ONCE_KEYS in the environment
       cases.py BASE_URL KEY interrupted PID CLIENT, where PID is the service's and CLIENT openai_python or litellm
"""

import json
import os
import pathlib
import signal
import sys
import time
import urllib.request

import jsonschema
import litellm
import openai

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from running import case, run  # noqa: E402

BASE, KEY = sys.argv[1], sys.argv[2]
MODEL = "demo-cloud"
SAY = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Say something about rivers."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Ulm", "Bern"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "home": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"], "additionalProperties": False}},
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
LONG = {"type": "json_schema", "json_schema": {"name": "long", "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 400}}}
client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=60)


def chat(**more):
    arguments = {"model": MODEL, "messages": SAY, "temperature": 0, "max_tokens": 12}
    return client.chat.completions.create(**(arguments | more))


def stats():
    request = urllib.request.Request(BASE + "/v1/stats", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def refused(kind, param, **more):
    try:
        chat(**more)
    except kind as err:
        assert err.param == param, f"param {err.param}, want {param}"
        assert err.request_id, "no request id"
        return err
    raise AssertionError(f"{more} was taken")


@case
def openai_python_models():
    models = list(client.models.list())
    assert [model.id for model in models] == [MODEL], models
    assert client.models.retrieve(MODEL).object == "model"


@case
def openai_python_whole():
    reply = chat()
    assert reply.model == MODEL and reply.id.startswith("chatcmpl-") and len(reply.choices) == 1
    assert reply.choices[0].message.role == "assistant" and reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


@case
def openai_python_stream_says_the_same_with_usage():
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert {(chunk.id, chunk.model) for chunk in chunks} == {(chunks[0].id, MODEL)}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == [whole.choices[0].finish_reason]


@case
def openai_python_continues_a_text():
    ask = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 6}
    whole = client.completions.create(**ask)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-") and whole.model == MODEL
    assert whole.usage.completion_tokens <= 6 and whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(client.completions.create(**ask, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == ask["prompt"] + whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    try:
        client.completions.create(**(ask | {"prompt": ["a", "b"]}))
        raise AssertionError("two texts were taken")
    except openai.BadRequestError as err:
        assert err.param == "prompt", err


@case
def openai_python_errors_are_typed():
    refused(openai.BadRequestError, "temperature", temperature=1.99999, extra_body={"temperature": 9})
    refused(openai.BadRequestError, "n", n=3)
    refused(openai.BadRequestError, "logit_bias", logit_bias={"1": 5})
    refused(openai.NotFoundError, "model", model="gpt-none")
    refused(openai.BadRequestError, "guided_json", extra_body={"guided_json": {}})
    refused(openai.BadRequestError, "messages", messages=[{"role": "user", "content": "word " * 20000}])


def with_key(key):
    return openai.OpenAI(base_url=BASE + "/v1", api_key=key, max_retries=0, timeout=60)


def once(at, ask):
    """What is raised when a key that allows one request in a minute asks twice."""
    key = os.environ["BATON_ONCE_KEYS"].split(",")[at]
    ask(key)
    try:
        ask(key)
    except Exception as err:  # noqa: BLE001: the caller looks at its kind
        return err
    raise AssertionError("two requests of one in a minute were taken")


@case
def openai_python_keys_that_may_not():
    ask = {"model": MODEL, "messages": SAY, "max_tokens": 2}
    stranger, no_chat = with_key("nonsense"), with_key(os.environ["BATON_NO_CHAT_KEY"])
    for refusal in (stranger.models.list, lambda: stranger.models.retrieve(MODEL), lambda: stranger.chat.completions.create(**ask)):
        try:
            refusal()
            raise AssertionError("a wrong key was taken")
        except openai.AuthenticationError as err:
            assert (err.code, err.type, err.param) == ("invalid_api_key", "invalid_request_error", None), err.body
    try:
        no_chat.chat.completions.create(**ask)
        raise AssertionError("a key without the scope was taken")
    except openai.PermissionDeniedError as err:
        assert (err.code, err.type) == ("insufficient_permissions", "invalid_request_error"), err.body
    assert no_chat.models.list().data, "any good key may list the models"


@case
def openai_python_rate_limit_says_when():
    err = once(0, lambda key: with_key(key).chat.completions.create(model=MODEL, messages=SAY, max_tokens=2))
    assert isinstance(err, openai.RateLimitError) and err.code == "rate_limit_exceeded", err
    assert 1 <= int(err.response.headers["retry-after"]) <= 60, err.response.headers


@case
def openai_python_stop():
    text = chat(max_tokens=24).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    want = text[: text.index(stop)]
    for stops in (stop, ["never said", stop]):
        reply = chat(max_tokens=24, stop=stops).choices[0]
        assert (reply.message.content, reply.finish_reason) == (want, "stop"), reply
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(max_tokens=24, stop=stops, stream=True))
        assert streamed == want, streamed


@case
def openai_python_seed():
    one, two, other = (chat(temperature=1.5, seed=seed, max_tokens=30).choices[0].message.content for seed in (5, 5, 6))
    assert one == two and one != other


@case
def openai_python_limits_and_penalties():
    assert chat(max_tokens=None, max_completion_tokens=3).usage.completion_tokens <= 3
    plain, varied = chat(max_tokens=40), chat(max_tokens=40, frequency_penalty=2, presence_penalty=2)
    assert varied.choices[0].message.content and plain.choices[0].message.content != varied.choices[0].message.content


@case
def openai_python_logprobs():
    reply = chat(logprobs=True, top_logprobs=2, max_tokens=6)
    places = reply.choices[0].logprobs.content
    assert len(places) == reply.usage.completion_tokens, len(places)
    for place in places:
        assert place.logprob <= 0 and len(place.top_logprobs) == 2
        assert abs(place.top_logprobs[0].logprob - place.logprob) < 1e-6, "greedy takes the likeliest"
    assert bytes(byte for place in places for byte in place.bytes).decode(errors="replace").startswith(reply.choices[0].message.content[:5])
    streamed = [place.logprob for chunk in chat(logprobs=True, max_tokens=6, stream=True) if chunk.choices[0].logprobs for place in chunk.choices[0].logprobs.content]
    assert streamed == [place.logprob for place in places]


@case
def openai_python_json_schema_always_validates():
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for seed in range(6):
        more = {"temperature": 1.2 if seed else 0, "seed": seed, "max_tokens": 300, "response_format": format}
        reply = chat(**more).choices[0]
        assert reply.finish_reason == "stop", reply
        jsonschema.validate(json.loads(reply.message.content), PERSON)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(stream=True, **more))
        assert streamed == reply.message.content
    refused(openai.BadRequestError, "response_format.json_schema.schema", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wizard"}}})


@case
def openai_python_json_object():
    reply = chat(response_format={"type": "json_object"}, max_tokens=100).choices[0]
    assert reply.message.content.startswith("{")
    if reply.finish_reason == "stop":
        assert isinstance(json.loads(reply.message.content), dict)


@case
def openai_python_tools_and_back():
    choice = {"type": "function", "function": {"name": "get_weather"}}
    for tool_choice in ("required", choice):
        reply = chat(tools=[WEATHER], tool_choice=tool_choice, max_tokens=200).choices[0]
        assert reply.finish_reason == "tool_calls" and reply.message.content is None, reply
        (call,) = reply.message.tool_calls
        assert call.id and call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    messages = SAY + [reply.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    after = chat(messages=messages, tools=[WEATHER], tool_choice="none")
    assert after.choices[0].message.role == "assistant" and not after.choices[0].message.tool_calls
    assert chat(tools=[WEATHER]).choices[0].finish_reason in ("stop", "length", "tool_calls")


@case
def openai_python_tools_streamed():
    calls = {}
    for chunk in chat(tools=[WEATHER], tool_choice="required", max_tokens=200, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(delta.index, {"id": None, "name": None, "arguments": ""})
            call["id"], call["name"] = delta.id or call["id"], delta.function.name or call["name"]
            call["arguments"] += delta.function.arguments or ""
        last = chunk.choices[0].finish_reason or None
    assert last == "tool_calls" and list(calls) == [0], calls
    assert calls[0]["id"] and calls[0]["name"] == "get_weather"
    jsonschema.validate(json.loads(calls[0]["arguments"]), WEATHER["function"]["parameters"])


@case
def openai_python_cancel_frees_the_slot():
    stream = chat(max_tokens=600, messages=[{"role": "user", "content": "Go on for long."}], response_format=LONG, stream=True)
    for _, _chunk in zip(range(3), stream):
        pass
    assert stats()["slots_used"] == 1
    stream.close()
    deadline = time.time() + 5
    while stats()["slots_used"] > 0:
        assert time.time() < deadline, "the slot is still held"
        time.sleep(0.02)


@case
def openai_python_l_cap_hands_over():
    extra = {"baton": {"scene": "chat", "assist_tokens": 4}}
    chunks = list(chat(max_tokens=None, stream=True, extra_body=extra))
    baton = chunks[0].model_extra["baton"]
    assert baton["assist_tokens"] == 4 and "mask" in baton, baton
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].model_extra["baton"]["handoff"] == {"reason": "cap", "next_index": 4}
    whole = chat(max_tokens=None, extra_body=extra)
    assert whole.choices[0].finish_reason == "length" and whole.model_extra["baton"]["handoff"]["next_index"] == 4
    assert whole.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def through_litellm(**more):
    arguments = {"model": "openai/" + MODEL, "api_base": BASE + "/v1", "api_key": KEY, "messages": SAY, "temperature": 0, "max_tokens": 12, "num_retries": 0, "timeout": 60}
    return litellm.completion(**(arguments | more))


@case
def litellm_whole_and_streamed():
    whole = through_litellm()
    chunks = list(through_litellm(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, text
    usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usages and usages[-1].completion_tokens == whole.usage.completion_tokens


@case
def litellm_errors():
    for kind, more in ((litellm.BadRequestError, {"n": 2}), (litellm.NotFoundError, {"model": "openai/none"}), (litellm.AuthenticationError, {"api_key": "nonsense"})):
        try:
            through_litellm(**more)
        except kind:
            continue
        raise AssertionError(f"{more} was taken")
    try:
        through_litellm(api_key=os.environ["BATON_NO_CHAT_KEY"])
        raise AssertionError("a key without the scope was taken")
    except openai.APIStatusError as err:
        assert err.status_code == 403, err
    err = once(1, lambda key: through_litellm(api_key=key, max_tokens=2))
    assert isinstance(err, litellm.RateLimitError), err


@case
def litellm_tools_and_format():
    reply = through_litellm(tools=[WEATHER], tool_choice="required", max_tokens=200).choices[0]
    assert reply.finish_reason == "tool_calls", reply
    jsonschema.validate(json.loads(reply.message.tool_calls[0].function.arguments), WEATHER["function"]["parameters"])
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    reply = through_litellm(response_format=format, max_tokens=300).choices[0]
    jsonschema.validate(json.loads(reply.message.content), PERSON)


@case
def litellm_l_cap():
    chunks = list(through_litellm(stream=True, extra_body={"baton": {"scene": "chat", "assist_tokens": 4}}))
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def interrupted(stream, pid):
    """Reads a stream whose service is told to stop after the first chunk: it must end with an error."""
    chunks = 0
    try:
        for chunk in stream:
            if chunks == 0:
                os.kill(pid, signal.SIGTERM)
            chunks += 1
            reasons = [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
            assert not reasons, f"a normal end: {reasons}"
    except openai.APIError as err:
        assert chunks > 0, "no chunk before the error"
        assert "the service stopped before the answer's end" in str(err), err
        return
    raise AssertionError(f"no error after {chunks} chunks")


def openai_python_interrupted(pid):
    interrupted(chat(stream=True, max_tokens=600, response_format=LONG), pid)


def litellm_interrupted(pid):
    interrupted(through_litellm(stream=True, max_tokens=600, response_format=LONG), pid)


def interruption(pid, name):
    one = {"openai_python": openai_python_interrupted, "litellm": litellm_interrupted}[name]

    def wrapped():
        one(int(pid))

    wrapped.__name__ = one.__name__
    return wrapped


run([interruption(*sys.argv[4:6])] if sys.argv[3:4] == ["interrupted"] else None)
