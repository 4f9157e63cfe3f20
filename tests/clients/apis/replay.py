"""Plays turns of a recorded-shape transcript against a running agent, by one SDK; one line of JSON a turn.

Usage: replay.py AGENT_URL KEY openai|anthropic TRANSCRIPT.json FIRST LAST MAX_TOKENS

A transcript has `system`, `tools` and `turns`: lists of messages `{role: user|assistant|tool, text, calls, id}`.
The request of a turn holds all messages up to it. Its system prompt begins with lines that change every turn.
"""

import json
import sys
import time

import anthropic
import openai

AGENT, KEY, DIALECT, PATH, FIRST, LAST, MAX_TOKENS = sys.argv[1:8]
TIMEOUT = 600


def system(transcript, turn):
    front = [
        f"x-anthropic-billing-header: cc_version=2.1.{turn}; cch={turn * 7919 % 65536:05x};",
        f"Session ID: s-{turn * 104729 % 100000}",
        f"Current date and time: 2026-11-26T10:{turn * 7 % 60:02}:{turn * 13 % 60:02}Z",
    ]
    return "\n".join([*front, transcript["system"]])


def by_openai(transcript, messages, turn):
    client = openai.OpenAI(base_url=AGENT + "/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)
    sent = [{"role": "system", "content": system(transcript, turn)}]
    for message in messages:
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": json.dumps(call["input"])}}
            for call in message.get("calls", [])
        ]
        if message["role"] == "tool":
            sent.append({"role": "tool", "tool_call_id": message["id"], "content": message["text"]})
        elif calls:
            sent.append({"role": "assistant", "content": message["text"], "tool_calls": calls})
        else:
            sent.append({"role": message["role"], "content": message["text"]})
    tools = [{"type": "function", "function": tool} for tool in transcript["tools"]]
    begun, first, said, usage = time.monotonic(), None, [], None
    stream = client.chat.completions.create(
        model="baton",
        messages=sent,
        tools=tools,
        temperature=0,
        max_tokens=int(MAX_TOKENS),
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True, exclude={"role"})
            if any(delta.values()):
                first = first or time.monotonic()
                said.append(delta)
    text = "".join(delta.get("content", "") for delta in said)
    calls = [delta["tool_calls"] for delta in said if delta.get("tool_calls")]
    cached = usage.prompt_tokens_details.cached_tokens
    return usage.prompt_tokens, cached, (first - begun) * 1e3, text, len(calls) > 0


def by_anthropic(transcript, messages, turn):
    client = anthropic.Anthropic(base_url=AGENT, api_key=KEY, max_retries=0, timeout=TIMEOUT)
    sent = []
    for message in messages:
        if message["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["id"], "content": message["text"]}]
        else:
            blocks = [{"type": "text", "text": message["text"]}] if message["text"] else []
            blocks += [{"type": "tool_use", **call} for call in message.get("calls", [])]
        role = "assistant" if message["role"] == "assistant" else "user"
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in transcript["tools"]
    ]
    begun, first = time.monotonic(), None
    with client.messages.stream(
        model="baton",
        system=system(transcript, turn),
        messages=sent,
        tools=tools,
        max_tokens=int(MAX_TOKENS),
        extra_body={"temperature": 0},
    ) as stream:
        for event in stream:
            if event.type == "content_block_delta":
                first = first or time.monotonic()
        final = stream.get_final_message()
    text = "".join(block.text for block in final.content if block.type == "text")
    usage, called = final.usage, any(block.type == "tool_use" for block in final.content)
    cached = usage.cache_read_input_tokens or 0
    return usage.input_tokens + cached, cached, (first - begun) * 1e3, text, called


def main():
    with open(PATH, encoding="utf-8") as file:
        transcript = json.load(file)
    play = {"openai": by_openai, "anthropic": by_anthropic}[DIALECT]
    for turn in range(int(FIRST), int(LAST) + 1):
        messages = [message for part in transcript["turns"][: turn + 1] for message in part]
        prompt, cached, first_ms, text, called = play(transcript, messages, turn)
        line = {"turn": turn, "prompt_tokens": prompt, "cached_tokens": cached, "first_ms": first_ms}
        print(json.dumps({**line, "text": text, "called": called}), flush=True)


main()
