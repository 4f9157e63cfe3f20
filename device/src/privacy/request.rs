//! Redacts a whole request. Every text that leaves the device passes through here, and is searched for the
//! values found in any other text.

use super::normal::Normal;
use super::turn::{Turn, TurnTexts};
use super::{EntityKind, Origin, RedactError, Redacted, Redactor};
use baton_generate::planted::{self, Bug};
use baton_protocol::{AssistRequest, DeviceInfo, RefineOptions, Sampling, Segment, SentenceMap};
use baton_refine::{pieces, rebuild};
use uuid::Uuid;

/// Fewest digits of a number in a schema that counts as private if another text has it as a private one. A
/// shorter one, such as a PIN, may as well be a limit.
const NUMBER_DIGITS_MIN: usize = 9;

/// Where the texts about the device stand in a request.
const DEVICE: &str = "/device/";

/// A request in which every text was redacted. Only [`Redactor`] makes one.
#[derive(Clone, PartialEq)]
pub struct RedactedRequest(AssistRequest, Vec<Origin>);

impl std::fmt::Debug for RedactedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedactedRequest({}, {} segments)", self.0.request_id, self.0.segments.len())
    }
}

impl RedactedRequest {
    /// Returns the request, which may be sent.
    pub fn as_request(&self) -> &AssistRequest {
        &self.0
    }

    /// Returns the redacted prompt, which the device's own engine uses too.
    pub fn segments(&self) -> &[Segment] {
        &self.0.segments
    }

    /// Returns where the texts come from: of each segment, and of each other text that is not sent as it was
    /// given.
    pub fn origins(&self) -> &[Origin] {
        &self.1
    }

    #[cfg(test)]
    pub(super) fn origins_mut(&mut self) -> &mut Vec<Origin> {
        &mut self.1
    }

    /// Asks the cloud for the whole answer, of at most so many tokens. No device goes on with it.
    pub(crate) fn for_cloud_alone(&mut self, tokens_max: usize) {
        self.0.device = None;
        self.1.retain(|origin| !origin.text.starts_with(DEVICE));
        self.0.refine = RefineOptions { ratio: Some(1.0), mode: Some("none".into()) };
        self.0.assist_tokens = u32::try_from(tokens_max).ok();
        self.0.resume = false;
    }

    /// Removes sentences. The remaining ones were redacted together with the removed ones.
    ///
    /// # Panics
    /// If `kept` does not have one flag for each unit of the prompt's [`SentenceMap`].
    pub(crate) fn keep(&mut self, kept: &[bool]) {
        let segments = &self.0.segments;
        let map = SentenceMap::new(segments);
        // The origins of the segments come first, one each.
        for (origin, pieces) in self.1.iter_mut().zip(pieces(segments, &map, kept)) {
            pieces.into_iter().for_each(|pieces| origin.keep(&pieces));
        }
        self.0.segments = rebuild(segments, &map, kept);
    }
}

/// A name that appears unchanged in an address or a header, and was checked to hold nothing private.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicName(String);

impl PublicName {
    /// Checks a name; `field` says what the name is for.
    ///
    /// # Errors
    /// [`RedactError::PrivateName`] if the name holds a private value, and the errors of
    /// [`Redactor::redact`].
    pub fn new(field: &'static str, name: &str) -> Result<Self, RedactError> {
        Redactor::default().public_name(field, name)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Redactor {
    /// Redacts every text of a request.
    ///
    /// A stop string that is part of a known value is left out; the device checks all stop strings itself.
    ///
    /// # Errors
    /// [`RedactError::PrivateName`] if the name of the scene, the model or the refiner's mode holds a private
    /// value, and the errors of [`Redactor::redact`].
    pub fn redact_request(&mut self, request: &AssistRequest) -> Result<RedactedRequest, RedactError> {
        // Every field is listed, so that a new field cannot be forgotten here.
        let AssistRequest {
            protocol,
            request_id,
            scene,
            scene_version,
            model,
            tokenizer_sha256,
            segments,
            tools,
            format,
            continue_from,
            device,
            sampling,
            refine,
            assist_tokens,
            resume,
            verify,
        } = request;
        let mut turn = Turn { segments: segments.clone(), tools: tools.clone(), format: format.clone() };
        let mut origins = Vec::new();
        self.public = turn.texts().fixed.iter().chain([model]).map(|name| name.to_lowercase()).collect();
        if !planted::is(Bug::ValueSent) {
            origins = self.turn(&mut turn, &sampling.stop)?;
        }
        let Turn { segments, tools, format } = turn;
        let sampling = self.sampling(sampling, &mut origins)?;
        let device = device.as_ref().map(|device| self.device(device, &mut origins)).transpose()?;
        let continue_from = continue_from.as_deref().map(|text| self.continued(text, &mut origins));
        let continue_from = continue_from.transpose()?;
        let digest = |text: &String| text.bytes().all(|b| b.is_ascii_hexdigit());
        let request = AssistRequest {
            protocol: *protocol,
            request_id: *request_id,
            scene: self.public_name("scene", scene)?.0,
            scene_version: *scene_version,
            model: self.public_name("model", model)?.0,
            tokenizer_sha256: tokenizer_sha256.clone().filter(digest),
            segments,
            tools,
            format,
            continue_from,
            device,
            sampling,
            refine: self.refine(refine)?,
            assist_tokens: *assist_tokens,
            resume: *resume,
            verify: *verify,
        };
        Ok(RedactedRequest(request, origins))
    }

    /// Redacts the text of an answer that goes on.
    fn continued(&mut self, text: &str, origins: &mut Vec<Origin>) -> Result<String, RedactError> {
        let (text, origin) = self.redact_answer(text)?.at("/continue_from");
        origins.push(origin);
        Ok(text)
    }

    /// Makes the same request again, to continue the answer after `accepted`, which a model wrote from the
    /// redacted prompt.
    ///
    /// # Errors
    /// The errors of [`Redactor::redact`].
    pub fn redact_continuation(
        &mut self,
        request: &RedactedRequest,
        accepted: &str,
        tokens_max: Option<u32>,
    ) -> Result<RedactedRequest, RedactError> {
        let mut origins: Vec<Origin> =
            request.1.iter().filter(|origin| !origin.text.starts_with(DEVICE)).cloned().collect();
        let accepted = self.continued(accepted, &mut origins)?;
        let request = AssistRequest {
            request_id: Uuid::new_v4(),
            device: None,
            refine: RefineOptions { ratio: Some(1.0), mode: Some("none".into()) },
            assist_tokens: tokens_max,
            resume: false,
            verify: false,
            continue_from: Some(accepted),
            ..request.0.clone()
        };
        Ok(RedactedRequest(request, origins))
    }

    /// Redacts a turn. Consecutive segments of one speaker are parts of one text, because a value may cross
    /// their border. All texts are checked together, stop strings too, so that a value in one is replaced in
    /// the others. Returns where each segment comes from, and each other text that is changed.
    fn turn(&mut self, turn: &mut Turn, stops: &[String]) -> Result<Vec<Origin>, RedactError> {
        let TurnTexts { fixed, free } = turn.texts();
        let by_speaker: Vec<&[Segment]> = turn.segments.chunk_by(|a, b| a.role == b.role).collect();
        let mut texts: Vec<Vec<&str>> =
            by_speaker.iter().map(|run| run.iter().map(|segment| segment.text.as_str()).collect()).collect();
        let n_runs = texts.len();
        texts.extend(free.iter().chain(stops).map(|text| vec![text.as_str()]));
        let groups: Vec<&[&str]> = texts.iter().map(Vec::as_slice).collect();
        let mut redacted = self.redact_groups(&groups)?.into_iter();
        // The values of the other texts are known now.
        fixed.iter().try_for_each(|text| self.check_name("tools", text))?;
        let segments: Vec<Redacted> = redacted.by_ref().take(n_runs).flatten().collect();
        let of_others = turn.set_free(&mut redacted.flatten());
        let mut origins = Vec::with_capacity(turn.segments.len() + of_others.len());
        for (index, (segment, text)) in turn.segments.iter_mut().zip(segments).enumerate() {
            let (text, origin) = text.at(format!("/segments/{index}/text"));
            segment.text = text;
            origins.push(Origin { role: Some(segment.role), ..origin });
        }
        origins.extend(of_others);
        Ok(origins)
    }

    fn sampling(&mut self, sampling: &Sampling, origins: &mut Vec<Origin>) -> Result<Sampling, RedactError> {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, stop } = sampling;
        let known = self.memory.learn(std::iter::empty());
        let is_sent: Vec<bool> = stop.iter().map(|stop| !known.holds_part(stop)).collect();
        let sent: Vec<&str> =
            stop.iter().zip(&is_sent).filter(|(_, sent)| **sent).map(|(stop, _)| stop.as_str()).collect();
        let mut redacted = self.redact_all(&sent)?.into_iter();
        let mut left = Vec::with_capacity(sent.len());
        for (index, (stop, is_sent)) in stop.iter().zip(is_sent).enumerate() {
            let place = format!("/sampling/stop/{index}");
            let origin = match is_sent.then(|| redacted.next()).flatten() {
                Some(redacted) => {
                    let (text, origin) = redacted.at(place);
                    left.push(text);
                    origin
                }
                None => Origin { text: place, role: None, given_bytes: stop.len(), parts: Vec::new() },
            };
            origins.extend(Some(origin).filter(|origin| !origin.is_unchanged()));
        }
        let stop = left;
        Ok(Sampling {
            temperature: *temperature,
            top_k: *top_k,
            top_p: *top_p,
            min_p: *min_p,
            repetition_penalty: *repetition_penalty,
            seed: *seed,
            stop,
        })
    }

    fn device(&mut self, device: &DeviceInfo, origins: &mut Vec<Origin>) -> Result<DeviceInfo, RedactError> {
        let DeviceInfo {
            class,
            model,
            pair,
            kv,
            prefill_ms_per_token,
            prefill_ms_per_token2,
            decode_ms,
            network,
            network_ms,
        } = device;
        let digest = |text: &String| text.bytes().all(|b| b.is_ascii_hexdigit());
        let mut redact = |name: &str, text: &str| {
            let (text, origin) = self.redact(text)?.at(format!("{DEVICE}{name}"));
            origins.extend(Some(origin).filter(|origin| !origin.is_unchanged()));
            Ok(text)
        };
        Ok(DeviceInfo {
            class: redact("class", class)?,
            model: redact("model", model)?,
            // The cloud itself gave the names.
            pair: pair.clone(),
            kv: kv.clone().filter(digest),
            prefill_ms_per_token: *prefill_ms_per_token,
            prefill_ms_per_token2: *prefill_ms_per_token2,
            decode_ms: *decode_ms,
            network: network.as_deref().map(|network| redact("network", network)).transpose()?,
            network_ms: *network_ms,
        })
    }

    fn refine(&mut self, refine: &RefineOptions) -> Result<RefineOptions, RedactError> {
        let RefineOptions { ratio, mode } = refine;
        let mode = mode.as_deref().map(|mode| self.public_name("refine.mode", mode)).transpose()?;
        Ok(RefineOptions { ratio: *ratio, mode: mode.map(|mode| mode.0) })
    }

    fn public_name(&mut self, field: &'static str, name: &str) -> Result<PublicName, RedactError> {
        self.check_name(field, name)?;
        Ok(PublicName(name.to_owned()))
    }

    /// Checks a name that cannot have a placeholder. It says what something is for, so a word in it is no
    /// person, also if another text has a person of that name. A secret is one wherever it stands.
    fn check_name(&mut self, field: &'static str, name: &str) -> Result<(), RedactError> {
        self.only_forms = true;
        let normal = Normal::new(name);
        let found = self.detect(&normal);
        self.only_forms = false;
        let known = self.memory.learn(std::iter::empty()).find(normal.text());
        let is_secret = |kind: EntityKind, value: &str| {
            let digits = value.bytes().filter(u8::is_ascii_digit).count();
            let is_number = value.bytes().all(|byte| !byte.is_ascii_alphabetic());
            !kind.is_name()
                && kind != EntityKind::User
                && digits > 0
                && (!is_number || digits >= NUMBER_DIGITS_MIN)
        };
        let secret = known.into_iter().any(|(range, kind)| is_secret(kind, &normal.text()[range]));
        match found?.is_empty() && !secret {
            true => Ok(()),
            false => Err(RedactError::PrivateName { field }),
        }
    }
}
