//! Redacts a whole request. Every text that leaves the device passes through here, and is searched for the
//! values found in any other text.

use super::turn::{Turn, TurnTexts};
use super::{RedactError, Redacted, Redactor};
use baton_generate::planted::{self, Bug};
use baton_protocol::{AssistRequest, DeviceInfo, RefineOptions, Sampling, Segment, SentenceMap};
use baton_refine::rebuild;
use uuid::Uuid;

/// A request in which every text was redacted. Only [`Redactor`] makes one.
#[derive(Clone, PartialEq)]
pub struct RedactedRequest(AssistRequest);

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

    /// Asks the cloud for the whole answer, of at most so many tokens. No device goes on with it.
    pub(crate) fn for_cloud_alone(&mut self, tokens_max: usize) {
        self.0.device = None;
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
        self.0.segments = rebuild(segments, &SentenceMap::new(segments), kept);
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
        } = request;
        let mut turn = Turn { segments: segments.clone(), tools: tools.clone(), format: format.clone() };
        if !planted::is(Bug::ValueSent) {
            self.turn(&mut turn, &sampling.stop)?;
        }
        let Turn { segments, tools, format } = turn;
        let sampling = self.sampling(sampling)?;
        let continue_from = continue_from.as_deref().map(|text| self.redact_answer(text)).transpose()?;
        let device = device.as_ref().map(|device| self.device(device)).transpose()?;
        let digest = |text: &String| text.bytes().all(|b| b.is_ascii_hexdigit());
        Ok(RedactedRequest(AssistRequest {
            protocol: *protocol,
            request_id: *request_id,
            scene: self.public_name("scene", scene)?.0,
            scene_version: *scene_version,
            model: self.public_name("model", model)?.0,
            tokenizer_sha256: tokenizer_sha256.clone().filter(digest),
            segments,
            tools,
            format,
            continue_from: continue_from.map(|text| text.0),
            device,
            sampling,
            refine: self.refine(refine)?,
            assist_tokens: *assist_tokens,
            resume: *resume,
        }))
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
        let accepted = self.redact_answer(accepted)?;
        Ok(RedactedRequest(AssistRequest {
            request_id: Uuid::new_v4(),
            device: None,
            refine: RefineOptions { ratio: Some(1.0), mode: Some("none".into()) },
            assist_tokens: tokens_max,
            resume: false,
            continue_from: Some(accepted.0),
            ..request.0.clone()
        }))
    }

    /// Redacts a turn. Consecutive segments of one speaker are parts of one text, because a value may cross
    /// their border. All texts are checked together, stop strings too, so that a value in one is replaced in
    /// the others.
    fn turn(&mut self, turn: &mut Turn, stops: &[String]) -> Result<(), RedactError> {
        let TurnTexts { fixed, free } = turn.texts();
        let by_speaker: Vec<&[Segment]> = turn.segments.chunk_by(|a, b| a.role == b.role).collect();
        let mut texts: Vec<Vec<&str>> =
            by_speaker.iter().map(|run| run.iter().map(|segment| segment.text.as_str()).collect()).collect();
        let n_runs = texts.len();
        texts.extend(fixed.iter().chain(&free).chain(stops).map(|text| vec![text.as_str()]));
        let groups: Vec<&[&str]> = texts.iter().map(Vec::as_slice).collect();
        let mut redacted = self.redact_groups(&groups)?.into_iter();
        let segments: Vec<Redacted> = redacted.by_ref().take(n_runs).flatten().collect();
        let mut others = redacted.flatten().map(|text| text.0);
        if others.by_ref().zip(&fixed).take(fixed.len()).any(|(after, before)| after != *before) {
            return Err(RedactError::PrivateName { field: "tools" });
        }
        turn.set_free(&mut others);
        for (segment, text) in turn.segments.iter_mut().zip(segments) {
            segment.text = text.0;
        }
        Ok(())
    }

    fn sampling(&mut self, sampling: &Sampling) -> Result<Sampling, RedactError> {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, stop } = sampling;
        let known = self.memory.learn(std::iter::empty());
        let stop: Vec<&str> =
            stop.iter().map(String::as_str).filter(|stop| !known.holds_part(stop)).collect();
        let stop = self.redact_all(&stop)?.into_iter().map(|stop| stop.0).collect();
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

    fn device(&mut self, device: &DeviceInfo) -> Result<DeviceInfo, RedactError> {
        let DeviceInfo {
            class,
            model,
            pair,
            prefill_ms_per_token,
            prefill_ms_per_token2,
            decode_ms,
            network,
            network_ms,
        } = device;
        Ok(DeviceInfo {
            class: self.redact(class)?.0,
            model: self.redact(model)?.0,
            // The cloud itself gave the names.
            pair: pair.clone(),
            prefill_ms_per_token: *prefill_ms_per_token,
            prefill_ms_per_token2: *prefill_ms_per_token2,
            decode_ms: *decode_ms,
            network: network.as_deref().map(|network| self.redact(network)).transpose()?.map(|text| text.0),
            network_ms: *network_ms,
        })
    }

    fn refine(&mut self, refine: &RefineOptions) -> Result<RefineOptions, RedactError> {
        let RefineOptions { ratio, mode } = refine;
        let mode = mode.as_deref().map(|mode| self.public_name("refine.mode", mode)).transpose()?;
        Ok(RefineOptions { ratio: *ratio, mode: mode.map(|mode| mode.0) })
    }

    fn public_name(&mut self, field: &'static str, name: &str) -> Result<PublicName, RedactError> {
        // Such a name says what something is for, and a word in it must not look like a person.
        self.only_forms = true;
        let redacted = self.redact(name);
        self.only_forms = false;
        match redacted?.as_str() == name {
            true => Ok(PublicName(name.to_owned())),
            false => Err(RedactError::PrivateName { field }),
        }
    }
}
