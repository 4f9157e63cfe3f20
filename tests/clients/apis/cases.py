"""anthropic, ollama and openai (responses) against a running agent: one line a case, `ok NAME` or `not ok NAME: why`.

Usage: cases.py AGENT_URL CLOUD_URL KEY
"""

import json
import pathlib
import sys

import anthropic
import ollama
import openai

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from running import case, raises, run  # noqa: E402

AGENT, CLOUD, KEY = sys.argv[1:4]
MODEL = "baton"
SAY = [{"role": "user", "content": "Say something about rivers."}]
# More answers than may run or wait at the same time.
MANY = 20
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Ulm", "Bern"]}},
    "required": ["city"],
    "additionalProperties": False,
}
claude = anthropic.Anthropic(base_url=AGENT, api_key=KEY, max_retries=0, timeout=60)
llama = ollama.Client(host=AGENT, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
responses = openai.OpenAI(base_url=AGENT + "/v1", api_key=KEY, max_retries=0, timeout=60)
cloud = openai.OpenAI(base_url=CLOUD + "/v1", api_key=KEY, max_retries=0, timeout=60)


# --- anthropic ---


# The client has no parameters for the sampling any more.
GREEDY = {"temperature": 0}


def message(**more):
    return claude.messages.create(**({"model": MODEL, "messages": SAY, "max_tokens": 12, "extra_body": GREEDY} | more))


@case
def anthropic_whole():
    reply = message(system=[{"type": "text", "text": "You help."}])
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL), reply
    assert [block.type for block in reply.content] == ["text"] and reply.content[0].text
    assert reply.stop_reason in ("end_turn", "max_tokens") and reply.stop_sequence is None
    assert reply.usage.input_tokens + reply.usage.cache_read_input_tokens > 0 and reply.usage.output_tokens <= 12


@case
def anthropic_stream_says_the_same():
    whole = message()
    kinds = []
    with claude.messages.stream(model=MODEL, messages=SAY, max_tokens=12, extra_body=GREEDY) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    raw = [event.type for event in message(stream=True)]
    assert raw[:2] == ["message_start", "content_block_start"] and raw[-3:] == ["content_block_stop", "message_delta", "message_stop"], raw


@case
def anthropic_counts_tokens():
    counted = claude.messages.count_tokens(model=MODEL, messages=SAY).input_tokens
    usage = message().usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)


@case
def anthropic_blocks_and_history():
    source = {"type": "text", "media_type": "text/plain", "data": "The Danube is long."}
    first = [{"type": "document", "source": source, "title": "Rivers"}, {"type": "text", "text": "Which river?"}]
    turns = [{"role": "user", "content": first}]
    reply = message(messages=turns)
    turns += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "And now?"}]
    assert message(messages=turns).usage.output_tokens > 0


@case
def anthropic_stop_sequences():
    text = message(max_tokens=24).content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    reply = message(max_tokens=24, stop_sequences=[stop, "never said"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop), reply
    assert "".join(block.text for block in reply.content) == text[: text.index(stop)]


@case
def anthropic_calls_tools():
    tool = {"name": "get_weather", "description": "of a city", "input_schema": WEATHER}
    ask = {"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}
    whole = message(**ask)
    (call,) = [block for block in whole.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.input["city"] in ("Ulm", "Bern") and whole.stop_reason == "tool_use", whole
    with claude.messages.stream(model=MODEL, messages=SAY, extra_body=GREEDY, **ask) as stream:
        (streamed,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = SAY + [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    assert message(messages=turns, tools=[tool]).usage.output_tokens > 0
    counted = claude.messages.count_tokens(model=MODEL, messages=SAY, tools=[tool]).input_tokens
    assert counted > claude.messages.count_tokens(model=MODEL, messages=SAY).input_tokens


@case
def anthropic_errors_are_typed():
    bad = lambda **more: raises(anthropic.BadRequestError, lambda: message(**more)).body["error"]  # noqa: E731
    assert bad(tools=[{"name": "f g", "input_schema": {"type": "object"}}])["type"] == "invalid_request_error"
    assert "top_p" in bad(extra_body={"top_p": 7})["message"]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    assert "messages[0].content[0]" in bad(messages=[{"role": "user", "content": [image]}])["message"]
    assert "prompt is too long" in bad(system="word " * 30000)["message"]
    err = raises(anthropic.NotFoundError, lambda: message(model="claude-none"))
    assert err.body["error"]["type"] == "not_found_error"
    stranger = anthropic.Anthropic(base_url=AGENT, api_key="nonsense", max_retries=0)
    raises(anthropic.AuthenticationError, lambda: stranger.messages.create(model=MODEL, messages=SAY, max_tokens=2), status_code=401)
    bearer = anthropic.Anthropic(base_url=AGENT, api_key=None, auth_token=KEY, max_retries=0)
    assert bearer.messages.create(model=MODEL, messages=SAY, max_tokens=2).type == "message"


@case
def anthropic_cancel_frees_the_place():
    for _ in range(MANY):
        stream = message(stream=True, max_tokens=5000)
        next(iter(stream))
        stream.close()
    assert message(max_tokens=2).usage.output_tokens > 0


# --- ollama ---


def chat(**more):
    return llama.chat(**({"model": MODEL, "messages": SAY, "options": {"temperature": 0, "num_predict": 12}} | more))


@case
def ollama_models():
    (model,) = llama.list().models
    assert model.model == MODEL and model.size > 0 and model.details.format == "gguf", model
    (loaded,) = llama.ps().models
    assert (loaded.model, loaded.size) == (MODEL, model.size) and loaded.expires_at.year > 2100
    shown = llama.show(MODEL)
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"] == model.details.family


@case
def ollama_chat_whole_and_streamed():
    whole = chat(keep_alive="5m")
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.role == "assistant"
    assert whole.eval_count <= 12 and whole.prompt_eval_count > 0 and whole.total_duration > 0
    parts = list(chat(stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


@case
def ollama_generate_whole_and_streamed():
    ask = {"model": MODEL, "prompt": SAY[0]["content"], "system": "You help.", "options": {"temperature": 0, "num_predict": 8}}
    whole = llama.generate(**ask)
    assert whole.done and whole.eval_count <= 8
    assert "".join(part.response or "" for part in llama.generate(**ask, stream=True)) == whole.response
    assert llama.generate(model=MODEL).done_reason == "load"
    assert llama.generate(**(ask | {"system": None, "raw": True})).done


@case
def ollama_unloads_and_loads_again():
    text = chat().message.content
    assert llama.generate(model=MODEL, keep_alive=0).done_reason == "unload"
    assert llama.ps().models == [], "it has left the memory"
    assert llama.generate(model=MODEL).done_reason == "load"
    assert len(llama.ps().models) == 1
    llama.generate(model=MODEL, keep_alive=0)
    assert chat().message.content == text, "an answer loads it, and says the same"


@case
def ollama_options():
    text = chat(options={"temperature": 0, "num_predict": 24}).message.content
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    stopped = chat(options={"temperature": 0, "num_predict": 24, "stop": [stop]})
    assert stopped.message.content == text[: text.index(stop)] and stopped.done_reason == "stop"
    one, two = (chat(options={"temperature": 1.5, "seed": 5, "num_predict": 20}).message.content for _ in range(2))
    assert one == two


@case
def ollama_tools_and_formats():
    tool = {"type": "function", "function": {"name": "get_weather", "description": "of a city", "parameters": WEATHER}}
    turns = SAY + [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Ulm"}}}]},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    assert chat(messages=turns, tools=[tool], options={"num_predict": 4}).done
    whole = chat(format=WEATHER, options={"temperature": 0, "num_predict": 60})
    assert json.loads(whole.message.content)["city"] in ("Ulm", "Bern"), whole
    assert "tools" in llama.show(MODEL).capabilities


@case
def ollama_errors_have_their_status():
    refused = lambda ask: raises(ollama.ResponseError, ask)  # noqa: E731
    err = refused(lambda: chat(model="llama3.2"))
    assert err.status_code == 404 and "llama3.2" in err.error, err
    for more, words in (({"options": {"stop": ["x"] * 17}}, "options.stop"), ({"format": {"enum": []}}, "schema"), ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools")):
        err = refused(lambda more=more: chat(**more))
        assert err.status_code == 400 and words in err.error, err
    assert refused(lambda: list(chat(model="llama3.2", stream=True))).status_code == 404
    assert "no embedding model" in refused(lambda: llama.embed(model=MODEL, input="a")).error
    assert "hf.co/" in refused(lambda: llama.pull("llama3.2")).error
    assert refused(lambda: list(llama.pull("hf.co/nobody/nothing", stream=True))).error


@case
def ollama_cancel_frees_the_place():
    for _ in range(MANY):
        stream = chat(stream=True, options={"num_predict": 5000})
        next(stream)
        stream.close()
    assert chat(options={"num_predict": 2}).done


# --- openai: responses ---


def respond(client=responses, **more):
    return client.responses.create(**({"model": "default", "input": SAY[0]["content"], "temperature": 0, "max_output_tokens": 12} | more))


def responses_whole_and_streamed(client):
    whole = respond(client, instructions="You help.")
    assert whole.object == "response" and whole.status in ("completed", "incomplete") and whole.output_text
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(respond(client, instructions="You help.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == f"response.{whole.status}"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(model="default", input=SAY, temperature=0, max_output_tokens=6) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text


@case
def openai_responses_of_the_agent():
    responses_whole_and_streamed(responses)


@case
def openai_responses_of_the_cloud():
    responses_whole_and_streamed(cloud)


@case
def openai_responses_keep_nothing():
    whole = respond(store=False)
    assert whole.store is False and whole.previous_response_id is None
    turns = [SAY[0], *[item.model_dump(exclude_none=True) for item in whole.output], {"role": "user", "content": "And more?"}]
    assert respond(input=turns).output_text
    for more, param in (({"previous_response_id": whole.id}, "previous_response_id"), ({"conversation": "conv_1"}, "conversation")):
        raises(openai.BadRequestError, lambda more=more: respond(**more), param=param)
    raises(openai.NotFoundError, lambda: respond(model="gpt-none"), code="model_not_found")


@case
def openai_responses_call_functions_of_both_programs():
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
    ask = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    for client in (cloud, responses):
        whole = respond(client, **ask)
        (call,) = [item for item in whole.output if item.type == "function_call"]
        assert call.name == "get_weather" and call.status == "completed", call
        *_, last = respond(client, stream=True, **ask)
        (streamed,) = [item for item in last.response.output if item.type == "function_call"]
        assert streamed.arguments == call.arguments
        turns = [SAY[0], call.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        assert respond(client, input=turns, tools=[tool]).status in ("completed", "incomplete")


@case
def openai_responses_cancel_frees_the_place():
    for _ in range(MANY):
        stream = respond(stream=True, max_output_tokens=5000)
        next(iter(stream))
        stream.close()
    assert respond(max_output_tokens=2).usage.output_tokens > 0


@case
def openai_embeddings_are_refused():
    for client in (responses, cloud):
        err = raises(openai.BadRequestError, lambda client=client: client.embeddings.create(model="default", input="a"), param="model")
        assert "no embedding model" in err.message


run()
