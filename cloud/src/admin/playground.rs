//! The playground: one question about a document, answered on the way of devices' requests, and shown as a
//! device would take it.
//!
//! Never: keeps or logs a document, a question or an answer; asks on a tenant's terms. Always: ends within
//! [`LIMIT`]. Whoever stops waiting cancels the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_constrain::tools;
use baton_engine::Model;
use baton_pacing::DeviceClass;
use baton_protocol::{
    AnswerFormat, AssistEvent, AssistRequest, DeviceInfo, EndEvent, EndReason, ErrorBody, ErrorCode,
    FirstEvent, MaskEvent, PROTOCOL_VERSION, RefineOptions, Role, Sampling, SceneInfo, Segment, SentenceMap,
    limits,
};
use baton_refine::{Mode, rebuild};
use tracing::warn;
use uuid::Uuid;

use super::problem::{Kind, Problem};
use super::view::playground::{
    AnswerView, DeviceTimesView, PlaygroundInput, PlaygroundView, PromptPart, RefinedView, SentenceView,
    TimingView,
};
use super::{Admin, predict};
use crate::scene::SceneSettings;
use crate::service::stream::AssistStream;
use crate::service::{CloudService, DEFAULT_MODEL, ServiceError, Terms};

/// The longest document, in bytes.
pub(super) const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// The longest question, in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 4 << 10;
/// The longest time that a question takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A document to begin with.
pub(super) const SAMPLE_DOCUMENT: &str = "\
The harbour of Lindholm was built in 1871 for the herring trade. \
Its stone pier is 340 metres long and has two small lamps. \
In winter the water near the pier is often covered with thin ice. \
The ferry to the island of Moss leaves at seven in the morning and at four in the afternoon. \
A ticket for the ferry costs nine crowns, and children under six travel free of charge. \
The old market hall stands behind the harbour office. \
On Saturdays farmers sell bread, cheese and apples there. \
A museum next to the hall shows nets, barrels and three wooden boats. \
It is closed on Mondays. \
Visitors can climb the water tower, from which one sees the whole bay.
";
/// A question about it.
pub(super) const SAMPLE_QUESTION: &str = "What does a ticket for the ferry cost?";

/// Answers a question. `id` is the id of the request.
pub(super) async fn ask(admin: &Admin, id: &str, input: &PlaygroundInput) -> Result<PlaygroundView, Problem> {
    let trial = Trial::new(admin, input).await?;
    let answered = tokio::time::timeout(LIMIT, Arc::new(trial).run(&admin.service, id)).await;
    answered.unwrap_or_else(|_| {
        let detail = format!("there was no whole answer within {} s, so it was cancelled", LIMIT.as_secs());
        Err(Problem::new(Kind::Unavailable, detail))
    })
}

/// A checked question.
struct Trial {
    scene: SceneInfo,
    request: AssistRequest,
    mode: Mode,
    device: Option<DeviceClass>,
}

impl Trial {
    async fn new(admin: &Admin, input: &PlaygroundInput) -> Result<Trial, Problem> {
        let scene = admin.service.scene(&input.scene).map_err(|err| refused(&err))?;
        check_text("document", &input.document, DOCUMENT_BYTES_MAX)?;
        check_text("question", &input.question, QUESTION_BYTES_MAX)?;
        limits::RATIO.check_opt("ratio", input.ratio).map_err(|err| Problem::field("ratio", &err))?;
        limits::ASSIST_TOKENS
            .check_opt("assist_tokens", input.assist_tokens)
            .map_err(|err| Problem::field("assist_tokens", &err))?;
        let mode: Mode = input
            .mode
            .as_ref()
            .unwrap_or(&scene.settings.mode)
            .parse()
            .map_err(|err| Problem::field("mode", &err))?;
        let device = match &input.device_class {
            Some(name) => Some(class(admin, name).await?),
            None => None,
        };
        let request = request(&scene, input, device.as_ref());
        Ok(Trial { scene, request, mode, device })
    }

    /// Has the service answer, and waits for the end.
    async fn run(self: Arc<Trial>, service: &CloudService, id: &str) -> Result<PlaygroundView, Problem> {
        let begun = Instant::now();
        let name = service.trying(&self.request).map_err(|err| refused(&err))?;
        let lease = service.hold(name, Some(LIMIT)).await.map_err(|err| refused(&err))?;
        let model = service.model_in_memory(name).map_err(|err| refused(&err))?;
        let terms = Terms::of_console(id, LIMIT.saturating_sub(begun.elapsed()));
        let (service, trial) = (service.clone(), self.clone());
        let accepted = apart(move || {
            let mut stream = service.try_out(&trial.request, terms).map_err(|err| refused(&err))?;
            stream.watch(lease);
            Ok(stream)
        });
        let mut stream = accepted.await?;
        let written = Written::read(&mut stream).await?;
        let id = id.to_owned();
        apart(move || self.view(id, &stream, &written, &model)).await
    }

    /// Opens the mask as a device does, and describes what a device would get.
    fn view(
        &self,
        id: String,
        stream: &AssistStream,
        written: &Written,
        model: &Model,
    ) -> Result<PlaygroundView, Problem> {
        // A scene that keeps all has no segment to refine, but its sentences are shown too.
        let mut segments = self.request.segments.clone();
        let document = segments.iter().position(|segment| segment.role == Role::User).unwrap_or_default();
        segments[document].refine = true;
        let map = SentenceMap::new(&segments);
        let kept = match &written.mask {
            Some(mask) => mask.open(&map).map_err(|err| failed_here(&err))?,
            None => vec![true; map.len()],
        };
        let prompt = rebuild(&segments, &map, &kept);
        let refined = tools::prompt(model.tokenizer(), model.template(), &prompt, &[]);
        let refined_prompt_tokens = refined.map_err(|err| failed_here(&err))?.ids.len() as u64;
        let prompt_tokens = stream.prompt_tokens();
        let sentence = |(unit, &kept): (&baton_protocol::Unit, &bool)| SentenceView {
            text: segments[unit.segment].text[unit.bytes.clone()].to_owned(),
            kept,
        };
        let part =
            |segment: Segment| PromptPart { role: segment.role.as_str().to_owned(), text: segment.text };
        Ok(PlaygroundView {
            request: id,
            scene: self.scene.id.clone(),
            scene_version: written.first.scene_version,
            model: stream.model().to_owned(),
            mode: self.mode.to_string(),
            sentences: map.units().iter().zip(&kept).map(sentence).collect(),
            refined: RefinedView {
                ratio: stream.ratio(),
                ratio_bound_by: self.ratio_bound_by(stream.ratio()).to_owned(),
                has_mask: written.mask.is_some(),
                ratio_kept: written.mask.as_ref().map_or(1.0, |mask| mask.ratio),
                sentences_kept: kept.iter().filter(|&&kept| kept).count(),
                prompt_tokens,
                refined_prompt_tokens,
                prompt: prompt.into_iter().map(part).collect(),
            },
            answer: written.answer(),
            timing: written.timing(),
            device: self.device.as_ref().map(|class| DeviceTimesView {
                device_class: class.name.clone(),
                refined_prefill_ms: class.cost.prefill_ms(0.0, refined_prompt_tokens as f64),
                whole_prefill_ms: class.cost.prefill_ms(0.0, prompt_tokens as f64),
                decode_ms: class.cost.decode_ms,
            }),
        })
    }

    /// Returns what decided r.
    fn ratio_bound_by(&self, ratio: f32) -> &'static str {
        let SceneSettings { refine, xi, ratio: fixed, .. } = &self.scene.settings;
        match (self.request.refine.ratio, fixed) {
            _ if !refine => "refine",
            _ if self.mode == Mode::None => "mode",
            (Some(_), _) => "request",
            (None, Some(fixed)) if fixed >= xi => "scene",
            _ if ratio <= *xi => "xi",
            _ => "optimizer",
        }
    }
}

/// The events of an answer that has ended.
struct Written {
    mask: Option<MaskEvent>,
    first: FirstEvent,
    text: String,
    end: EndEvent,
}

impl Written {
    async fn read(stream: &mut AssistStream) -> Result<Written, Problem> {
        let (mut mask, mut first, mut text) = (None, None, String::new());
        while let Some(event) = stream.next().await {
            match event {
                AssistEvent::Progress(_) => {}
                AssistEvent::Mask(event) => mask = Some(event),
                AssistEvent::First(event) => {
                    text.push_str(&event.text);
                    first = Some(*event);
                }
                AssistEvent::Token(event) => text.push_str(&event.text),
                AssistEvent::Error(body) => return Err(failed(&body)),
                AssistEvent::End(end) if end.reason == EndReason::Cancelled => {
                    return Err(Problem::new(Kind::Conflict, "the answer was cancelled"));
                }
                AssistEvent::End(end) => {
                    let empty = || Problem::new(Kind::Conflict, "the model ended the answer before it began");
                    return Ok(Written { mask, first: first.ok_or_else(empty)?, text, end });
                }
            }
        }
        Err(Problem::new(Kind::Unavailable, "the answer has no end, because the service is stopping"))
    }

    fn answer(&self) -> AnswerView {
        AnswerView {
            text: self.text.clone(),
            tokens: self.end.usage.completion_tokens,
            assist_tokens: self.first.assist_tokens,
            assist_bound_by: self.first.assist_bound_by.clone(),
            device_takes_over: self.end.reason == EndReason::Cap,
        }
    }

    fn timing(&self) -> TimingView {
        TimingView {
            queue_ms: self.first.timing.queue_ms,
            prefill_ms: self.first.timing.prefill_ms,
            refine_ms: self.first.timing.refine_ms,
            decode_ms: self.end.timing.map(|timing| timing.decode_ms),
            cached_tokens: self.end.usage.cached_prefix_tokens,
        }
    }
}

/// Runs some milliseconds of arithmetic away from the runtime's threads.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Problem::new(Kind::Internal, "the question could not be answered")))
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<(), Problem> {
    if text.trim().is_empty() {
        return Err(Problem::field(field, &format!("field `{field}` is empty")));
    }
    if text.len() > bytes_max {
        let why = format!("field `{field}` has {} bytes, at most {bytes_max}", text.len());
        return Err(Problem::field(field, &why));
    }
    Ok(())
}

/// Returns the classes that may be chosen.
pub(super) async fn classes(admin: &Admin) -> Result<Vec<DeviceClass>, Problem> {
    Ok(predict::classes(&admin.known().await?).0)
}

async fn class(admin: &Admin, name: &str) -> Result<DeviceClass, Problem> {
    let found = classes(admin).await?.into_iter().find(|class| class.name == name);
    found.ok_or_else(|| {
        let name: String = name.chars().take(64).collect();
        Problem::field("device_class", &format!("field `device_class` is `{name}`, which is not known"))
    })
}

/// Makes the request that a device would send.
fn request(scene: &SceneInfo, input: &PlaygroundInput, device: Option<&DeviceClass>) -> AssistRequest {
    AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: Uuid::new_v4(),
        scene: scene.id.clone(),
        scene_version: Some(scene.version),
        model: DEFAULT_MODEL.to_owned(),
        tokenizer_sha256: None,
        segments: segments(&scene.settings, &input.document, &input.question),
        tools: None,
        format: AnswerFormat::Text,
        continue_from: None,
        device: device.map(|class| DeviceInfo {
            class: class.name.clone(),
            model: "console".to_owned(),
            pair: None,
            kv: None,
            prefill_ms_per_token: Some(class.cost.prefill_ms_per_token),
            prefill_ms_per_token2: class.cost.prefill_ms_per_token2,
            decode_ms: Some(class.cost.decode_ms),
            network: None,
            network_ms: None,
        }),
        sampling: Sampling::default(),
        refine: RefineOptions { ratio: input.ratio, mode: input.mode.clone() },
        assist_tokens: input.assist_tokens,
        resume: false,
        verify: false,
    }
}

/// Lays out a question as a device does: system text, document, prefix, question.
fn segments(settings: &SceneSettings, document: &str, question: &str) -> Vec<Segment> {
    let system = Some(settings.system.as_str()).filter(|system| !system.is_empty());
    let mut segments: Vec<Segment> =
        system.into_iter().map(|text| Segment::fixed(Role::System, text)).collect();
    segments.push(Segment { refine: settings.refine, ..Segment::fixed(Role::User, document) });
    let prefix = &settings.question_prefix;
    if prefix.is_empty() || prefix.ends_with(char::is_whitespace) {
        segments.push(Segment::fixed(Role::User, format!("{prefix}{question}")));
    } else {
        segments.push(Segment::fixed(Role::User, prefix.as_str()));
        segments.push(Segment::fixed(Role::User, question));
    }
    segments
}

fn refused(err: &ServiceError) -> Problem {
    failed(&err.to_body())
}

/// Returns the problem of an answer that failed.
fn failed(body: &ErrorBody) -> Problem {
    let error = &body.error;
    let kind = match error.code {
        ErrorCode::PromptTooLong => return Problem::field("document", &error.message),
        ErrorCode::Overloaded | ErrorCode::Unavailable | ErrorCode::Timeout => Kind::Unavailable,
        ErrorCode::InvalidRequest | ErrorCode::UnknownScene | ErrorCode::UnknownModel => {
            match error.param.as_deref().and_then(field_of) {
                Some(field) => return Problem::field(field, &error.message),
                None => Kind::Invalid,
            }
        }
        ErrorCode::SceneChanged => Kind::Conflict,
        _ => Kind::Internal,
    };
    let problem = Problem::new(kind, error.message.clone());
    match error.retry_after_ms {
        Some(ms) => problem.retry_after_s(ms.div_ceil(1000)),
        None => problem,
    }
}

/// Returns the field of the form that a field of the request is made of.
fn field_of(param: &str) -> Option<&'static str> {
    Some(match param {
        "scene" | "model" => "scene",
        "refine.ratio" => "ratio",
        "refine" | "refine.mode" => "mode",
        "assist_tokens" => "assist_tokens",
        "device" => "device_class",
        _ if param.starts_with("segments[") => "document",
        _ if param.starts_with("device.") => "device_class",
        _ => return None,
    })
}

fn failed_here(err: &(dyn std::error::Error + 'static)) -> Problem {
    warn!(err, "an answer of the playground cannot be shown");
    Problem::new(Kind::Internal, "the answer cannot be shown; see the log of the service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_laid_out_as_on_a_device() {
        let check = |prefix: &str, refine: bool, want: &[(&str, bool)]| {
            let settings = SceneSettings {
                question_prefix: prefix.to_owned(),
                refine,
                ..SceneSettings::with_system("Be brief.")
            };
            let made = segments(&settings, "One. Two.", "Why?");
            let have: Vec<(&str, bool)> = made.iter().map(|one| (one.text.as_str(), one.refine)).collect();
            assert_eq!(have, want, "{prefix}");
        };
        let (system, document) = (("Be brief.", false), ("One. Two.", true));
        check("\nAsk: ", true, &[system, document, ("\nAsk: Why?", false)]);
        check("\nAsk:", true, &[system, document, ("\nAsk:", false), ("Why?", false)]);
        check("", false, &[system, ("One. Two.", false), ("Why?", false)]);
    }

    #[test]
    fn what_is_wrong_is_named_as_in_the_form() {
        let field = |param: &str| {
            let body = ErrorBody::new(ErrorCode::InvalidRequest, "wrong").with_param(param);
            failed(&body).field_name().map(str::to_owned)
        };
        assert_eq!(field("segments[1].text").as_deref(), Some("document"));
        assert_eq!(field("refine.ratio").as_deref(), Some("ratio"));
        assert_eq!(field("request_id"), None);
        let busy = failed(&ErrorBody::new(ErrorCode::Overloaded, "busy").with_retry_after_ms(1200));
        assert_eq!(busy.kind, Kind::Unavailable);
    }

    #[test]
    fn the_sample_has_sentences_to_choose_from() {
        let segments = segments(&SceneSettings::default(), SAMPLE_DOCUMENT, SAMPLE_QUESTION);
        assert_eq!(SentenceMap::new(&segments).len(), 10);
    }
}
