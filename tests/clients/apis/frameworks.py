"""LangChain and LiteLLM against a running agent: one line a case, `ok NAME` or `not ok NAME: why`.

Usage: frameworks.py AGENT_URL KEY
"""

import os
import pathlib
import sys
from typing import Literal

# LiteLLM asks the network for prices otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
import openai  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from running import case, raises, run  # noqa: E402

AGENT, KEY = sys.argv[1:3]
litellm.suppress_debug_info = True
# More answers than may run or wait at the same time.
MANY = 20
SAY = "Say something about rivers."


# --- LangChain ---


def chat(**more):
    given = {"model": "baton", "base_url": AGENT + "/v1", "api_key": KEY, "temperature": 0, "max_tokens": 12, "max_retries": 0}
    return ChatOpenAI(**(given | more))


@tool
def get_weather(city: Literal["Ulm", "Bern"]) -> str:
    """Says the weather of a city."""
    return f"sunny in {city}"


class Place(BaseModel):
    """A place."""

    is_large: bool


@case
def langchain_whole_and_streamed():
    messages = [SystemMessage("You help."), HumanMessage(SAY)]
    whole = chat().invoke(messages)
    assert whole.content and whole.usage_metadata["output_tokens"] <= 12
    parts = list(chat(stream_usage=True).stream(messages))
    assert "".join(part.content for part in parts) == whole.content
    assert sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata) == whole.usage_metadata["output_tokens"]


@case
def langchain_calls_tools():
    model = chat(max_tokens=200).bind_tools([get_weather], tool_choice="get_weather", strict=True)
    asked = [HumanMessage(SAY)]
    reply = model.invoke(asked)
    (call,) = reply.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["city"], str), call
    gathered = None
    for part in model.stream(asked):
        gathered = part if gathered is None else gathered + part
    assert [made["args"] for made in gathered.tool_calls] == [call["args"]]
    turns = [*asked, AIMessage("", tool_calls=[call]), ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert chat().bind_tools([get_weather]).invoke(turns).response_metadata["finish_reason"]


@case
def langchain_forms():
    place = chat(max_tokens=60).with_structured_output(Place).invoke(SAY)
    assert isinstance(place, Place) and isinstance(place.is_large, bool)


@case
def langchain_errors():
    err = raises(openai.NotFoundError, lambda: chat(model="gpt-none").invoke(SAY))
    assert err.code == "model_not_found", err
    assert raises(openai.AuthenticationError, lambda: chat(api_key="wrong").invoke(SAY)).status_code == 401


@case
def langchain_cancel_frees_the_place():
    for _ in range(MANY):
        stream = chat(max_tokens=5000).stream(SAY)
        next(stream)
        stream.close()
    assert chat(max_tokens=2).invoke(SAY)


# --- LiteLLM, by its way to OpenAI's and to Anthropic's API ---


def complete(model="openai/baton", **more):
    base = AGENT + "/v1" if model.startswith("openai/") else AGENT
    given = {"model": model, "api_base": base, "api_key": KEY, "temperature": 0, "max_tokens": 12, "num_retries": 0}
    return litellm.completion(**(given | {"messages": [{"role": "user", "content": SAY}]} | more))


@case
def litellm_whole_and_streamed():
    for model in ("openai/baton", "anthropic/baton"):
        whole = complete(model).choices[0].message.content
        assert whole
        parts = [chunk.choices[0].delta.content or "" for chunk in complete(model, stream=True)]
        assert "".join(parts) == whole, (model, parts, whole)


@case
def litellm_calls_tools():
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Ulm", "Bern"]}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "of a city", "parameters": schema}}]
    for model in ("openai/baton", "anthropic/baton"):
        reply = complete(model, tools=tools, tool_choice="required", max_tokens=200)
        call = reply.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and '"city"' in call.function.arguments, (model, call)


@case
def litellm_errors():
    assert raises(litellm.NotFoundError, lambda: complete("openai/none")).status_code == 404
    assert raises(litellm.AuthenticationError, lambda: complete(api_key="wrong")).status_code == 401


@case
def litellm_cancel_frees_the_place():
    for _ in range(MANY):
        stream = complete(stream=True, max_tokens=5000)
        next(iter(stream))
        stream.completion_stream.close()
    assert complete(max_tokens=2)


run()
