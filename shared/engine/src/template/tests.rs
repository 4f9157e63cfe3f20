//! Templates similar to those of real models, and hostile ones.

use super::*;

/// The template of the demo models.
pub(crate) const DEMO: &str = "{{ '<|bos|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

pub(crate) const LLAMA3: &str = r#"{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message comes first. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

pub(crate) const QWEN: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

pub(crate) const MISTRAL: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"#;

const DEEPSEEK_R1: &str = r#"{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content.strip() + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\n'}}{% endif %}"#;

fn message<'a>(role: &'a str, content: &'a str) -> Message<'a> {
    Message { role, content }
}

fn render(source: &str, messages: &[Message<'_>]) -> Result<String, TemplateError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(messages, true)
}

#[track_caller]
fn check(source: &str, messages: &[Message<'_>], want: &str) {
    assert_eq!(render(source, messages).unwrap(), want);
}

/// Checks a template that ignores the messages.
#[track_caller]
fn gives(source: &str, want: &str) {
    check(source, &[message("user", "Hi there")], want);
}

const CHAT: [Message<'static>; 4] = [
    Message { role: "system", content: " Be brief. " },
    Message { role: "user", content: "One?" },
    Message { role: "assistant", content: "<think>hm</think> Two. " },
    Message { role: "user", content: "Why?" },
];

#[test]
fn templates_of_real_models() {
    check(DEMO, &CHAT[..2], "<|bos|><|system|> Be brief. <|end|><|user|>One?<|end|><|assistant|>");
    check(
        LLAMA3,
        &CHAT[..2],
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nOne?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    );
    check(
        QWEN,
        &CHAT[1..2],
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n",
    );
    let tools = [message("user", "a"), message("tool", "b"), message("tool", "c")];
    check(
        QWEN,
        &tools,
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na<|im_end|>\n\
         <|im_start|>user\n<tool_response>\nb\n</tool_response>\n<tool_response>\nc\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    );
    check(
        MISTRAL,
        &CHAT,
        "<s>[INST] One?[/INST] <think>hm</think> Two.</s>[INST]  Be brief. \n\nWhy?[/INST]",
    );
    check(
        DEEPSEEK_R1,
        &CHAT,
        "<s> Be brief. <｜User｜>One?<｜Assistant｜>Two.<｜end▁of▁sentence｜><｜User｜>Why?<｜Assistant｜><think>\n",
    );
    let err = render(MISTRAL, &CHAT[2..]).unwrap_err().to_string();
    assert_eq!(
        err,
        "chat template refuses the messages: After the optional system message, conversation roles must alternate user/assistant"
    );
}

#[test]
fn the_language_is_that_of_hugging_face() {
    gives("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb");
    gives("{{ messages[0].content.split(' ')[-1].upper() }}", "THERE");
    gives("{{ ' x '.strip() ~ 'ab'.replace('a', 'c') ~ '-'.join(['p', 'q']) }}", "xcbp-q");
    gives("{{ 'abc'[1:] + 'abc'[::-1] + 'abc'[:1] }}", "bccbaa");
    gives(
        "{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}",
        "8",
    );
    gives("{% macro m(a, b='z') %}{{ a ~ b }}{% endmacro %}{{ m('x') }}{{ m('x', b='y') }}", "xzxy");
    gives(
        "{% for k, v in {'a': 1, 'b': [2, 'q']}.items() %}{{ k }}={{ v|tojson }};{% endfor %}",
        "a=1;b=[2, \"q\"];",
    );
    gives("{{ messages[0].get('name', 'none given') }}", "none given");
    gives(
        "{{ 'yes' if 1 < 2 <= 2 and not false else 'no' }}{{ -3 + 1.5 }}{{ 7 // 2 }}{{ 2 ** 3 }}",
        "yes-1.538",
    );
    gives("{{ (1 - 2) - (3 - 4) }}{{ not (true and false) }}{{ 'a' not in 'abc' }}", "0TrueFalse");
    gives("{% for i in [1,2,3] if i != 2 %}{{ i }}{% else %}none{% endfor %}", "13");
    gives(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    );
    gives("{% if 1 > 2 %}a{% elif 2 > 1 %}b{% else %}c{% endif %}{% with x = 5 %}{{ x }}{% endwith %}", "b5");
    gives("{% set x %}<{{ 'y' }}>{% endset %}{{ x|length }}{{ x }}", "3<y>");
    gives("{{ [1] + [2, 3] }}{{ ([1, 2] | map('string') | join('+')) }}", "[1, 2, 3]1+2");
    gives("{{ 'a\"b\\\\c\n' }}{{ missing | default('d') }}{{ missing }}", "a\"b\\c\nd");
    gives(
        "{{ 'x y'.title() ~ 'aB'.capitalize() ~ 'a,b,c'.rsplit(',', 1)[0] ~ 'ab'.startswith(('x', 'a')) }}",
        "X YAba,bTrue",
    );
    gives(
        "{{ strftime_now('%Y-%m-%d') }}{{ messages | length }}{{ messages | selectattr('role', 'equalto', 'x') | list | length }}",
        "2024-07-2610",
    );
    gives("{{ {'a': [1, none], 'b': '<é\\n\"'} | tojson }}", "{\"a\": [1, null], \"b\": \"<é\\n\\\"\"}");
    gives(
        "{{ {'a': [1, true], 'b': []} | tojson(indent=2) }}",
        "{\n  \"a\": [\n    1,\n    true\n  ],\n  \"b\": []\n}",
    );
    gives("{# comment #}{{ '}}' }}{% raw %}{{ x }}{% endraw %}", "}}{{ x }}");
}

#[test]
fn what_cannot_be_is_refused_when_read() {
    let refused = |source: &str| ChatTemplate::new(source, "", "").unwrap_err().to_string();
    for bad in [
        "{{ x",
        "{% if %}",
        "{% for x %}{% endfor %}",
        "{{ 'a }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% nothing %}",
        "{{ x | }}",
    ] {
        assert_eq!(refused(bad), "parse chat template", "{bad}");
    }
    for bad in
        ["{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% block b %}{% endblock %}"]
    {
        assert!(refused(bad).contains("another template"), "{bad}");
    }
    for (source, name) in [
        ("{{ 'a' | wordwrap }}", "the filter `wordwrap`"),
        ("{% if false %}{{ 'a' | xmlattr }}{% endif %}", "the filter `xmlattr`"),
        ("{{ 'a' | never }}", "the unknown filter `never`"),
        ("{{ 'a' is never }}", "the unknown test `never`"),
        ("{{ lipsum() }}", "the function `lipsum`"),
        ("{{ messages[0].content.encode() }}", "the method `encode`"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
    ] {
        assert_eq!(refused(source), format!("chat template uses {name}, which is not supported"));
    }
    // Jinja2 too finds an unknown filter of a branch only if the branch runs.
    gives("{% if false %}{{ 'a' | never }}{% endif %}b", "b");
    let long = "x".repeat(SOURCE_BYTES_MAX + 1);
    assert_eq!(refused(&long), "chat template has 262145 bytes, at most 262144 are read");
    let chain = format!("{{{{ {}1 }}}}", "1+".repeat(100_000));
    assert!(refused(&chain).contains("thousands of tokens"));
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(15_000));
    assert!(refused(&elifs).contains("elif"));
    for open in ["(", "[", "{% if a %}", "{% for a in b %}"] {
        let nested =
            if open.len() == 1 { format!("{{{{ {} }}}}", open.repeat(1_900)) } else { open.repeat(5_000) };
        assert_eq!(refused(&nested), "parse chat template", "{open}");
    }
}

#[test]
fn long_but_flat_expressions_are_fine() {
    let chain = format!("{{{{ {}'z' }}}}", "'a' ~ ".repeat(900));
    assert_eq!(render(&chain, &[]).unwrap(), "a".repeat(900) + "z");
    let filters = format!("{{{{ 'q'{} }}}}", "|upper".repeat(900));
    assert_eq!(render(&filters, &[]).unwrap(), "Q");
    let logic = format!("{{{{ {}true }}}}", "true and ".repeat(900));
    assert_eq!(render(&logic, &[]).unwrap(), "True");
}

#[track_caller]
fn hostile(source: &str) -> TemplateError {
    match render(source, &[message("user", "Hi")]) {
        Err(err) => err,
        Ok(text) => panic!("{} bytes came out", text.len()),
    }
}

/// Whether a template was stopped by one of its limits.
fn is_cut_off(err: &TemplateError) -> bool {
    match err {
        TemplateError::TooLarge { max } => *max < 80 << 20,
        TemplateError::OutOfFuel { max } => *max < 200_000,
        _ => false,
    }
}

#[test]
fn endless_templates_run_out_of_fuel() {
    let nested = "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}";
    let err = hostile(nested);
    assert_eq!(err.to_string(), "chat template ran more than 102000 steps");
    let in_macro = "{% macro m() %}{% for a in range(99999) %}{% endfor %}{% endmacro %}{% for a in range(99999) %}{{ m() }}{% endfor %}";
    assert!(matches!(hostile(in_macro), TemplateError::OutOfFuel { .. }));
}

#[test]
fn deep_recursion_is_an_error() {
    assert!(matches!(
        hostile("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        TemplateError::Failed { .. }
    ));
    let recursive = "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}";
    assert!(matches!(hostile(recursive), TemplateError::Failed { .. }));
    let deep = "{% set ns = namespace(l=[]) %}{% for a in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}";
    assert!(matches!(hostile(deep), TemplateError::TooLarge { .. }));
    let shown = "{% set ns = namespace(l=[]) %}{% for a in range(9000) %}{% set ns.l = [ns.l] %}{% endfor %}";
    for end in [
        "{{ ns.l }}",
        "{{ ns.l | tojson(indent=4) }}",
        "{{ ns.l ~ '' }}",
        "{{ ns.l == [ns.l] }}",
        "{{ ns.l | string }}",
    ] {
        let outcome = render(&format!("{shown}{end}"), &[]);
        assert!(outcome.is_err() || outcome.is_ok_and(|text| text.len() < 1 << 20), "{end}");
    }
}

#[test]
fn what_would_fill_the_memory_is_cut_off() {
    let grow = |body: &str| {
        format!(
            "{{% set ns = namespace(s='0123456789', t='x', l=[1]) %}}{{% for i in range(60) %}}{body}{{% endfor %}}"
        )
    };
    let cases = [
        grow("{% set ns.s = ns.s ~ ns.s %}"),
        grow("{% set ns.s = ns.s + ns.s %}"),
        grow("{% set ns.s = ns.s * 9 %}"),
        grow("{% set ns.l = ns.l + ns.l %}"),
        grow("{% set ns.t = ns.s ~ ns.t %}{% set ns.s = ns.t ~ ns.s %}"),
        grow("{% set ns.s = [ns.s, ns.s] | join(ns.s) %}"),
        grow("{% set ns.s = ns.s.replace('0', ns.s) %}"),
        grow("{% set ns.s = ns.s | replace('', ns.s) %}"),
        grow("{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}"),
        grow("{% set ns.s = [ns.s, ns.s] | string %}"),
        grow("{% set ns.s = [ns.s, ns.s] | tojson %}"),
        grow("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
        grow("{% set ns.l = [ns.l, ns.l] %}{{ ns.l }}"),
        "{% macro d(s, n) %}{% if n > 0 %}{{ d(s ~ s, n - 1) }}{% else %}{{ s }}{% endif %}{% endmacro %}{{ d('0123456789', 20) }}".to_owned(),
        format!("{{% for a in range(90000) %}}{}{{% endfor %}}", "y".repeat(100_000)),
        format!("{{% set x %}}{{% for a in range(90000) %}}{}{{% endfor %}}{{% endset %}}", "y".repeat(100_000)),
        format!("{{% macro m() %}}{{% for a in range(90000) %}}{}{{% endfor %}}{{% endmacro %}}{{{{ m() | length }}}}", "y".repeat(100_000)),
        "{% set ns = namespace(l=[]) %}{% for a in range(20000) %}{% set ns.l = ns.l + [range(90000) | list] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(l=[], s='0123456789' ~ range(9000) | list) %}{% for a in range(15000) %}{% set ns.l = [ns.l, ns.s[1:]] %}{% endfor %}".to_owned(),
    ];
    for case in &cases {
        let shown: String = case.chars().take(200).collect();
        let err = hostile(case);
        assert!(is_cut_off(&err), "{err:?} for {shown}");
    }
}

/// Two values of 2^40 nodes each, and operations that visit them in one step.
#[test]
fn what_would_walk_for_ever_is_cut_off() {
    let cases = [
        "{{ ns.a == ns.b }}",
        "{{ ns.a < ns.b }}",
        "{{ ns.a in [ns.b] }}",
        "{{ ns.a is eq(ns.b) }}",
        "{{ [ns.a] | select('eq', ns.b) | list }}",
        "{{ [ns.a, ns.b] | unique | list }}",
        "{{ {ns.a: 1} }}",
        "{{ {}[ns.a] }}",
    ];
    let made = [
        "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}",
        "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}",
        "{% set ns.a = {'x': ns.a, 'y': ns.a} %}{% set ns.b = {'x': ns.b, 'y': ns.b} %}",
        "{% set ns.a = dict(x=ns.a, y=ns.a) %}{% set ns.b = dict(x=ns.b, y=ns.b) %}",
        "{% set ns.a = [{}, {}] | map(attribute='x', default=ns.a) %}{% set ns.b = [{}, {}] | map(attribute='x', default=ns.b) %}",
    ];
    for (made, case) in made.iter().flat_map(|made| cases.iter().map(move |case| (made, case))) {
        let source = format!(
            "{{% set ns = namespace(a=['x'], b=['x']) %}}{{% for i in range(40) %}}{made}{{% endfor %}}{case}"
        );
        // Python compares no dictionaries, and takes no list for a key.
        let is_no_walk = match render(&source, &[]) {
            Ok(text) => text.is_empty() && case == &"{{ {}[ns.a] }}",
            Err(TemplateError::Failed { message }) => {
                message.contains("unhashable") || message.contains("no order")
            }
            Err(err) => is_cut_off(&err),
        };
        assert!(is_no_walk, "{source}");
    }
}

#[test]
fn large_values_are_compared_a_bounded_number_of_times() {
    let made = "{% set a = range(9000) | list %}{% set b = range(9000) | list %}";
    for compared in
        ["a == b", "9 in [a, b] or b in [b, a]", "a is ne(b)", "[-1] | select('in', a) | list", "a <= b"]
    {
        let source =
            format!("{made}{{% for i in range(3000) %}}{{% if {compared} %}}{{% endif %}}{{% endfor %}}");
        assert!(is_cut_off(&hostile(&source)), "{compared}");
    }
}

/// A long conversation allows enough steps to nest values so deep that dropping them would overflow the
/// stack.
#[test]
fn values_nest_some_hundred_levels_at_most() {
    let long = vec![message("user", "Hi there, this is a message of some length."); 500];
    let (open, close) = ("[".repeat(50), "]".repeat(50));
    for body in [
        format!("{{% set ns.l = {open}ns.l{close} %}}"),
        "{% set ns.l = (ns.l,) %}".to_owned(),
        "{% set ns.l = {'l': ns.l} %}".to_owned(),
        "{% set ns.l = {'l': ns.l}.items() %}".to_owned(),
        "{% set ns.l = dict(l=ns.l) %}".to_owned(),
        "{% set ns.l = {'l': ns.l} | items %}".to_owned(),
    ] {
        let source = format!(
            "{{% set ns = namespace(l=[]) %}}{{% for i in range(99999) %}}{body}{{% endfor %}}{{{{ ns.l }}}}"
        );
        let outcome = render(&source, &long);
        assert!(matches!(outcome, Err(TemplateError::TooLarge { .. })), "{body}");
    }
}

#[test]
fn views_of_views_become_lists() {
    let sliced = "{% set ns = namespace(l=[1, 2]) %}{% for i in range(3000) %}{% set ns.l = ns.l[0:] | reverse | list %}{% endfor %}";
    gives(&format!("{sliced}{{{{ ns.l | list }}}}{{{{ ns.l is sequence }}}}"), "[1, 2]True");
}

#[test]
fn no_value_holds_what_changes_later() {
    for source in [
        "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set other = namespace(n=ns) %}",
        "{% set ns = namespace() %}{% set ns.n = [ns] %}",
        "{% set ns = namespace() %}{% set ns.n = dict(n=ns) %}",
    ] {
        assert!(
            matches!(hostile(source), TemplateError::TooLarge { .. } | TemplateError::Failed { .. }),
            "{source}"
        );
    }
}

#[test]
fn counting_leaves_the_language_as_it_is() {
    gives("{% set x = 'b' %}{{ x in ['a', 'b'] }}{{ x in 'abc' }}{{ x not in {'b': 1} }}", "TrueTrueFalse");
    gives(
        "{% set x = 2 %}{% set y = 3 %}{{ x < y }}{{ 1 < x < y }}{{ x == y }}{{ [x, [y]] != [x] }}",
        "TrueTrueFalseTrue",
    );
    gives("{% set k = 'a' %}{{ {'a': [k, {k: 1}]}[k][1][k] }}{{ ('x', k)[1] }}{{ [k][0] }}", "1aa");
    gives("{{ dict(a=1, b=[2])['b'][0] }}{{ namespace(z=3).z }}{{ dict({'q': 4}).q }}", "234");
    gives(
        "{{ ['b', 'a', 'b'] | unique | sort | join(',') }}{{ [1, 2, 3] | select('in', [1, 3]) | list }}",
        "a,b[1, 3]",
    );
    gives("{{ 'a' is in(['a']) }}{{ 'ab' is lower }}", "TrueTrue");
    gives("{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.previtem }}{% endfor %}", "TrueFalse1True1");
}

#[test]
fn long_conversations_stay_within_the_limits() {
    let pair =
        [message("user", "What is the weather in the harbour?"), message("assistant", "Fine, I think.")];
    let chat: Vec<Message<'_>> = pair.iter().copied().cycle().take(4_001).collect();
    for source in [DEMO, LLAMA3, QWEN, MISTRAL, DEEPSEEK_R1] {
        let text = render(source, &chat).unwrap();
        assert!(text.len() > 4_000 * 14, "{}", text.len());
    }
}

#[test]
fn templates_reach_nothing_outside() {
    for source in [
        "{{ open('/etc/passwd') }}",
        "{{ debug() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ [1].append(2) }}",
        "{{ {}.update({'a': 1}) }}",
        "{{ [1] | tojson(indent=1000) }}",
    ] {
        assert!(matches!(hostile(source), TemplateError::Failed { .. }), "{source}");
    }
    assert!(
        matches!(hostile("{{ raise_exception('x' ~ 'y') }}"), TemplateError::Raised { message } if message == "xy")
    );
}
