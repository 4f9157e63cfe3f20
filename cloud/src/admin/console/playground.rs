//! The page of the playground: a question about a document, and what the cloud and a device make of it.

use askama::Template;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use baton_refine::Mode;

use super::{Choice, Frame, PageResult, choices, form, page, said_of};
use crate::admin::Admin;
use crate::admin::chart::grouped;
use crate::admin::guard::Fields;
use crate::admin::playground::{self, SAMPLE_DOCUMENT, SAMPLE_QUESTION};
use crate::admin::problem::Problem;
use crate::admin::session::Session;
use crate::admin::view::playground::{PlaygroundInput, PlaygroundView, PromptPart, SentenceView};
use crate::http::request_id::request_id;

const PAGE: &str = "/admin/playground";

/// The form as it was typed.
#[derive(Default)]
struct Typed {
    scene: String,
    document: String,
    question: String,
    ratio: String,
    mode: String,
    assist_tokens: String,
    device_class: String,
}

impl Typed {
    /// Returns a form that shows something with one click.
    fn sample() -> Typed {
        Typed {
            document: SAMPLE_DOCUMENT.to_owned(),
            question: SAMPLE_QUESTION.to_owned(),
            ..Typed::default()
        }
    }

    fn read(fields: &Fields) -> Typed {
        Typed {
            scene: fields.text("scene"),
            document: fields.get("document").unwrap_or_default(),
            question: fields.text("question"),
            ratio: fields.text("ratio"),
            mode: fields.text("mode"),
            assist_tokens: fields.text("assist_tokens"),
            device_class: fields.text("device_class"),
        }
    }

    fn input(&self, fields: &Fields) -> Result<PlaygroundInput, Problem> {
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Ok(PlaygroundInput {
            scene: self.scene.clone(),
            document: self.document.clone(),
            question: self.question.clone(),
            ratio: fields.number("ratio")?,
            mode: given(&self.mode),
            assist_tokens: fields.number("assist_tokens")?,
            device_class: given(&self.device_class),
        })
    }
}

#[derive(Template)]
#[template(path = "playground.html")]
struct PlaygroundPage {
    frame: Frame,
    typed: Typed,
    scenes: Vec<Choice>,
    modes: Vec<Choice>,
    classes: Vec<Choice>,
    problem: Option<String>,
    /// The field that is wrong, and why.
    bad: Option<(String, String)>,
    shown: Option<Shown>,
}

impl PlaygroundPage {
    /// Returns the HTML attributes that mark a field if it is the wrong one.
    fn invalid(&self, name: &str) -> String {
        form::invalid(self.bad.as_ref(), name)
    }

    /// Returns the error of a field as HTML if it is the wrong one.
    fn error(&self, name: &str) -> String {
        form::error(self.bad.as_ref(), name)
    }
}

/// An answer, as texts.
struct Shown {
    request: String,
    about: String,
    figures: Vec<(&'static str, String, String)>,
    sentences: Vec<SentenceView>,
    has_mask: bool,
    text: String,
    takes_over: Option<String>,
    device: Option<String>,
    prompt: Vec<PromptPart>,
}

impl From<PlaygroundView> for Shown {
    fn from(view: PlaygroundView) -> Shown {
        let PlaygroundView { scene, scene_version, model, mode, .. } = &view;
        Shown {
            about: format!("Scene {scene}, version {scene_version}; model {model}; ranked by {mode}."),
            figures: figures(&view),
            takes_over: view.answer.device_takes_over.then(|| {
                format!("The device would take over here, after {} tokens of the cloud.", view.answer.tokens)
            }),
            device: view.device.as_ref().map(|device| {
                let seconds = |ms: f64| grouped(ms / 1e3, 2);
                format!(
                    "A device of class {} would read the refined prompt in {} s, and the whole one in {} s. It writes a \
                     token in {} ms.",
                    device.device_class,
                    seconds(device.refined_prefill_ms),
                    seconds(device.whole_prefill_ms),
                    grouped(device.decode_ms, 1)
                )
            }),
            request: view.request,
            sentences: view.sentences,
            has_mask: view.refined.has_mask,
            text: view.answer.text,
            prompt: view.refined.prompt,
        }
    }
}

/// Returns names, values and notes of the figures.
fn figures(view: &PlaygroundView) -> Vec<(&'static str, String, String)> {
    let percent = |share: f64| format!("{} %", grouped(share * 100.0, 0));
    let count = |number: u64| grouped(number as f64, 0);
    let ms = |time: f64| format!("{} ms", grouped(time, 1));
    let (refined, answer, timing) = (&view.refined, &view.answer, &view.timing);
    let sentences = format!("{} of {} sentences", refined.sentences_kept, view.sentences.len());
    let cached = match timing.cached_tokens {
        0 => String::new(),
        tokens => format!("{} tokens were in the cache", count(tokens)),
    };
    vec![
        ("Kept of the document", percent(f64::from(refined.ratio_kept)), sentences),
        ("r", grouped(f64::from(refined.ratio), 2), ratio_words(&refined.ratio_bound_by).to_owned()),
        ("L", count(answer.assist_tokens.into()), format!("bound: {}", answer.assist_bound_by)),
        ("Written", count(answer.tokens), "tokens".to_owned()),
        (
            "Prompt for the device",
            count(refined.refined_prompt_tokens),
            format!("of {} tokens", count(refined.prompt_tokens)),
        ),
        ("Queue", ms(timing.queue_ms), String::new()),
        ("Prefill", ms(timing.prefill_ms), cached),
        ("Refine", ms(timing.refine_ms), String::new()),
        ("Decode", timing.decode_ms.map_or("–".to_owned(), ms), String::new()),
    ]
}

/// Says what decided r.
fn ratio_words(bound_by: &str) -> &'static str {
    match bound_by {
        "request" => "asked for here",
        "scene" => "set by the scene",
        "xi" => "the scene's xi",
        "optimizer" => "chosen by the optimizer",
        "mode" => "this mode keeps all",
        _ => "the scene keeps all",
    }
}

/// Returns the scene to begin with: the first one that is about documents.
fn first_scene(admin: &Admin) -> String {
    let scenes = admin.service.scenes();
    let fits = |scene: &&baton_protocol::SceneInfo| {
        scene.settings.refine && !scene.settings.question_prefix.is_empty()
    };
    let found = scenes.iter().find(fits).or(scenes.first());
    found.map(|scene| scene.id.clone()).unwrap_or_default()
}

async fn playground_page(
    admin: &Admin,
    session: &Session,
    typed: Typed,
    answered: Option<Result<PlaygroundView, Problem>>,
) -> PageResult {
    let (shown, refused) = match answered {
        None => (None, None),
        Some(Ok(view)) => (Some(Shown::from(view)), None),
        Some(Err(problem)) => (None, Some(problem)),
    };
    let chosen = if typed.scene.is_empty() { first_scene(admin) } else { typed.scene.clone() };
    let classes = playground::classes(admin).await?;
    let shown = PlaygroundPage {
        frame: Frame::of(session, PAGE, "Playground"),
        scenes: choices(admin.service.scenes().into_iter().map(|scene| scene.id), &chosen),
        modes: choices(Mode::ALL, &typed.mode),
        classes: choices(classes.into_iter().map(|class| class.name), &typed.device_class),
        problem: refused.as_ref().filter(|problem| problem.field_name().is_none()).map(said_of),
        bad: refused.as_ref().and_then(|problem| Some((problem.field_name()?.to_owned(), said_of(problem)))),
        typed,
        shown,
    };
    let status = refused.as_ref().map_or(StatusCode::OK, |problem| problem.kind.status());
    let mut response = page(status, &shown);
    if let Some(problem) = &refused {
        problem.retry_header(&mut response);
    }
    Ok(response)
}

pub(super) async fn show(State(admin): State<Admin>, session: Session) -> PageResult {
    playground_page(&admin, &session, Typed::sample(), None).await
}

pub(super) async fn ask(
    State(admin): State<Admin>,
    session: Session,
    headers: HeaderMap,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let typed = Typed::read(&fields);
    let answered = match typed.input(&fields) {
        Ok(input) => playground::ask(&admin, request_id(&headers), &input).await,
        Err(problem) => Err(problem),
    };
    playground_page(&admin, &session, typed, Some(answered)).await
}
