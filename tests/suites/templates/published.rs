//! Templates beside Jinja2: small ones with what Jinja2 gave, and the published ones of llama.cpp's source
//! package, beside Jinja2 itself.

use std::{collections::BTreeMap, process::Command, time::Duration};

use baton_constrain::tools::ToolForm;
use baton_e2e::clients::{published_templates, python_for, run, scripts};
use baton_engine::{ChatTemplate, ToolChat};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Family, folder};

/// Least number of the published templates, and of those that must open.
const PUBLISHED_MIN: usize = 70;
const OPEN_MIN: usize = 66;
/// Guards Jinja2 against hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Published templates and conversations whose prompt differs from Jinja2's, each with the reason.
const DIFFERENT: &[(&str, &str, &str)] = &[];

#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    name: String,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    variables: Option<Map<String, Value>>,
    add_generation_prompt: Option<bool>,
}

/// What Jinja2 makes of a conversation.
#[derive(Deserialize)]
struct LaidOut {
    #[serde(default)]
    source: String,
    prompt: Option<String>,
}

#[derive(Deserialize)]
struct Small {
    conversation: Conversation,
    templates: Vec<LaidOut>,
}

impl Conversation {
    fn all() -> Vec<Conversation> {
        let text = std::fs::read_to_string(folder().join("conversations.json"));
        serde_json::from_str(&text.expect("the conversations are in the checkout")).expect("they are JSON")
    }

    fn lay_out(&self, template: &ChatTemplate) -> Result<String, String> {
        let variables = self.variables.as_ref();
        let chat = ToolChat { messages: &self.messages, tools: &self.tools, variables };
        template
            .render_with_tools(chat, self.add_generation_prompt.unwrap_or(true))
            .map_err(|err| err.to_string())
    }
}

/// Compares a prompt with that of Jinja2; returns the difference. Two refusals are equal.
fn difference(found: Result<String, String>, want: Option<&str>) -> Option<String> {
    match (found, want) {
        (Ok(found), Some(want)) if found == want => None,
        (Err(_), None) => None,
        (Ok(found), Some(want)) => {
            let same =
                found.char_indices().zip(want.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
            let from = same.unwrap_or_else(|| found.len().min(want.len()));
            let shown =
                |text: &str| text.get(from..).unwrap_or_default().chars().take(60).collect::<String>();
            Some(format!("from byte {from} on: found {:?}, want {:?}", shown(&found), shown(want)))
        }
        (Ok(_), None) => Some("Jinja2 refuses it".to_owned()),
        (Err(why), Some(_)) => Some(why),
    }
}

#[test]
fn small_templates_are_laid_out_as_jinja2_did() {
    let text = std::fs::read_to_string(folder().join("small.json")).expect("the records are in the checkout");
    let small: Small = serde_json::from_str(&text).expect("the records are JSON");
    assert!(small.templates.len() > 400);
    let mut wrong = Vec::new();
    for recorded in &small.templates {
        let template = ChatTemplate::new(&recorded.source, "<s>", "</s>").map_err(|err| err.to_string());
        let found = template.and_then(|template| small.conversation.lay_out(&template));
        if let Some(why) = difference(found, recorded.prompt.as_deref()) {
            wrong.push(format!("{:?}: {why}", recorded.source));
        }
    }
    assert!(wrong.is_empty(), "{} templates differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Templates of a folder of cases, if `BATON_CASES` names one: all open and take a question.
#[test]
fn templates_of_cases_are_laid_out() {
    let Some(cases) = std::env::var_os("BATON_CASES") else {
        return println!("skipped: templates: BATON_CASES names no folder of cases");
    };
    let mut count = 0;
    for path in std::fs::read_dir(cases).expect("a folder").flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|kind| kind != "jinja") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a template");
        let template = ChatTemplate::new(&source, "<s>", "</s>");
        let template = template.unwrap_or_else(|err| panic!("{}: {err:?}", path.display()));
        for conversation in Conversation::all().iter().filter(|of| of.tools.is_empty()) {
            let laid_out = conversation.lay_out(&template);
            laid_out.unwrap_or_else(|why| panic!("{}, {}: {why}", path.display(), conversation.name));
        }
        count += 1;
    }
    println!("{count} templates of cases are laid out");
}

#[test]
fn published_templates_are_laid_out_as_by_jinja2() {
    if std::env::var_os("BATON_TEST_ALL").is_none_or(|value| value.is_empty()) {
        return println!("skipped: templates: `./x test templates` fetches the published ones (77 MB)");
    }
    let templates = match published_templates() {
        Ok(folder) => folder,
        Err(why) => return println!("skipped: templates: {why}"),
    };
    let mut python = Command::new(python_for("templates").expect("it was installed before").join("python"));
    python.arg(scripts().join("templates/layouts.py"));
    python.arg(folder().join("conversations.json")).arg(&templates);
    let ended = run(&mut python, "layouts", LIMIT).expect("Jinja2 ends");
    assert!(ended.status.success(), "{}", ended.stderr);
    let wanted: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_str(&ended.stdout).expect("the layouts are JSON");
    let conversations = Conversation::all();
    let mut open = 0;
    let mut by_template = 0;
    let mut equal = 0;
    let mut refused = 0;
    let mut wrong = Vec::new();
    for (name, wanted) in &wanted {
        let source = std::fs::read_to_string(templates.join(name)).expect("a template");
        let template = match ChatTemplate::new(&source, "<s>", "</s>") {
            Ok(template) => template,
            Err(err) => {
                println!("does not open: {name}: {err}");
                continue;
            }
        };
        open += 1;
        by_template += usize::from(ToolForm::of(&template).by_template);
        for conversation in &conversations {
            let want = wanted[&conversation.name].get("prompt").and_then(Value::as_str);
            match difference(conversation.lay_out(&template), want) {
                None if want.is_some() => equal += 1,
                None => refused += 1,
                Some(why) => {
                    let known = DIFFERENT.iter().find(|(of, at, _)| of == name && *at == conversation.name);
                    match known {
                        Some((_, _, reason)) => println!("differs: {name}, {}: {reason}", conversation.name),
                        None => wrong.push(format!("{name}, {}: {why}", conversation.name)),
                    }
                }
            }
        }
        user_text_stays_text(name, &source);
    }
    println!(
        "{open} of {} published templates open; of {} prompts {equal} are Jinja2's, {refused} are refused by both, \
         {} differ",
        wanted.len(),
        open * conversations.len(),
        wrong.len()
    );
    println!(
        "{by_template} of them tell a model of tools by themselves; the others write calls that are not read yet, or know no \
         tools, and get the project's own form"
    );
    assert!(wanted.len() >= PUBLISHED_MIN && open >= OPEN_MIN);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lays out texts that hold what the template itself writes as control tokens, in every field: none of them
/// becomes a control token, however the template cuts them.
fn user_text_stays_text(name: &str, source: &str) {
    let controls = marks(source);
    let family = Family::of_template(name, source, &controls);
    let (tokenizer, template) = family.open();
    let hostile = format!("x{} {} y", controls.concat(), controls.join("\n"));
    for (user, system) in [(hostile.as_str(), "Be brief."), ("Hi", hostile.as_str())] {
        let segments = [
            baton_engine::PromptSegment { role: "system", text: system },
            baton_engine::PromptSegment { role: "user", text: user },
        ];
        let Ok(prompt) = baton_engine::prompt::assemble(&tokenizer, &template, &segments) else { continue };
        for found in &prompt.segments {
            let own = &prompt.ids[found.tokens.clone()];
            assert!(own.iter().all(|&id| !tokenizer.is_control(id)), "{name}");
        }
    }
}

/// The texts of a template that look like control tokens: `<|...|>`, `[INST]`, `<tag>`.
fn marks(source: &str) -> Vec<String> {
    let mut marks = Vec::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (at, _) in source.match_indices(open) {
            let Some(len) = source[at..].chars().take(40).position(|c| c == close) else { continue };
            let mark: String = source[at..].chars().take(len + 1).collect();
            let inner = |c: char| c.is_alphanumeric() || matches!(c, '_' | '|' | '/' | '-' | '▁' | '｜');
            let is_mark = mark.chars().skip(1).take(len - 1).all(inner) && len > 3;
            let is_name = open == '<' || mark.chars().all(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit());
            if is_mark && is_name && !marks.contains(&mark) {
                marks.push(mark);
            }
        }
    }
    marks
}
