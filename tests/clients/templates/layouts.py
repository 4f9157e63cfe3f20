"""Lays out conversations with templates, by Jinja2 as Hugging Face's `apply_chat_template` sets it up.

    layouts.py CONVERSATIONS.json FOLDER      prints {template: {conversation: {"prompt": ...} or {"refused": ...}}}
    layouts.py --unpack PACKAGES FOLDER       takes the templates out of llama.cpp's source package
    layouts.py --record SMALL.json            writes into SMALL.json what its templates give

A template that Jinja2 does not compile is {"unopened": ...}. `strftime_now` returns Baton's one day.
"""

import datetime
import json
import sys
import tarfile
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

DAY = datetime.datetime(2024, 7, 26, 12)


class Generation(jinja2.ext.Extension):
    """The tag by which Hugging Face marks what a model wrote: its body is a call block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = DAY.strftime
    return made


def laid_out(template, conversation):
    given = {
        "messages": conversation["messages"],
        "tools": conversation.get("tools") or None,
        "documents": None,
        "add_generation_prompt": conversation.get("add_generation_prompt", True),
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    try:
        return {"prompt": template.render(**(conversation.get("variables") or {}), **given)}
    except Exception as err:
        return {"refused": f"{type(err).__name__}: {err}"}


def unpack(packages, folder):
    for file in packages.glob("*.tar.gz"):
        with tarfile.open(file) as package:
            for entry in package:
                path = Path(entry.name)
                if path.suffix == ".jinja" and path.parts[-3:-1] == ("models", "templates"):
                    (folder / path.name).write_bytes(package.extractfile(entry).read())


def record(path):
    given = json.loads(path.read_text("utf-8"))
    lines = []
    for source in [one["source"] for one in given["templates"]]:
        try:
            found = laid_out(environment().from_string(source), given["conversation"])
        except Exception as err:
            found = {"refused": f"{type(err).__name__}: {err}"}
        lines.append(json.dumps({"source": source} | found, ensure_ascii=False))
    conversation = json.dumps(given["conversation"], ensure_ascii=False)
    text = f'{{"by": "Jinja2 {jinja2.__version__}",\n"conversation": {conversation},\n"templates": [\n'
    path.write_text(text + ",\n".join(lines) + "\n]}\n", "utf-8")


def main():
    if sys.argv[1] == "--unpack":
        return unpack(Path(sys.argv[2]), Path(sys.argv[3]))
    if sys.argv[1] == "--record":
        return record(Path(sys.argv[2]))
    conversations = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    found = {}
    for path in sorted(Path(sys.argv[2]).glob("*.jinja")):
        try:
            # As in a model file: Jinja2 itself sees to line breaks.
            template = environment().from_string(path.read_bytes().decode())
        except Exception as err:
            found[path.name] = {"unopened": f"{type(err).__name__}: {err}"}
            continue
        found[path.name] = {one["name"]: laid_out(template, one) for one in conversations}
    json.dump(found, sys.stdout, ensure_ascii=False)


main()
