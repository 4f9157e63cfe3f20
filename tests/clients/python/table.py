"""openai-python against a running program: one line a row of a table, `ok NAME` or `not ok NAME: why`.

Usage: table.py BASE_URL KEY TABLE, where TABLE is a JSON list of rows {name, body, want}. `want` is null for an answer, else
{status, type, param, code} of the refusal. An answer is asked for twice, whole and streamed; both must be the same.
"""

import inspect
import json
import sys

import openai

BASE, KEY, TABLE = sys.argv[1:4]
client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=120)
KNOWN = set(inspect.signature(client.chat.completions.create).parameters)


def create(body, **more):
    fields = body | more
    extra = {name: value for name, value in fields.items() if name not in KNOWN}
    return client.chat.completions.create(**{name: fields[name] for name in fields if name in KNOWN}, extra_body=extra)


def refused(body, want):
    try:
        create(body)
    except openai.APIStatusError as err:
        have = {"status": err.status_code, "type": err.type, "param": err.param, "code": err.code}
        assert have == want, f"{have}, want {want}"
        return
    raise AssertionError("it was answered")


def answered(body):
    whole = create(body)
    (choice,) = whole.choices
    usage = whole.usage
    assert (choice.message.role, choice.message.refusal) == ("assistant", None), choice
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    text, calls, places, reasons, last = "", {}, [], [], None
    for chunk in create(body, stream=True, stream_options={"include_usage": True}):
        assert chunk.usage is None or not chunk.choices, chunk
        last = chunk.usage or last
        for part in chunk.choices:
            text += part.delta.content or ""
            places += part.logprobs.content if part.logprobs else []
            reasons += [part.finish_reason] if part.finish_reason else []
            for call in part.delta.tool_calls or []:
                name, arguments = calls.get(call.index, (None, ""))
                calls[call.index] = (call.function.name or name, arguments + (call.function.arguments or ""))
    assert text == (choice.message.content or ""), f"streamed {text!r}, whole {choice.message.content!r}"
    assert list(calls.values()) == [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []], calls
    assert places == (choice.logprobs.content if choice.logprobs else []), places
    assert reasons == [choice.finish_reason], reasons
    assert (last.prompt_tokens, last.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens), last


with open(TABLE, encoding="utf-8") as file:
    rows = json.load(file)
failed = 0
for row in rows:
    try:
        if row["want"] is None:
            answered(row["body"])
        else:
            refused(row["body"], row["want"])
        print(f"ok {row['name']}", flush=True)
    except Exception as err:  # noqa: BLE001: a row may fail in any way, and the others still run
        failed += 1
        print(f"not ok {row['name']}: {type(err).__name__}: {str(err)[:400]!r}", flush=True)
sys.exit(1 if failed else 0)
