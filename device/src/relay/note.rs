//! Notes: typed messages about what did not go as planned, for people and programs.

use super::event::Source;
use crate::privacy::Replaced;
use baton_protocol::ErrorCode;
use serde::Serialize;
use std::fmt;

/// Why the cloud does not, or no longer, take part in an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudFault {
    /// There is no connection: DNS, TCP or TLS failed.
    #[error("cannot reach the cloud: {reason}")]
    Unreachable {
        /// The client's message.
        reason: String,
    },
    /// The cloud wants a key: HTTP 401 or 403.
    #[error("the cloud asks you to sign in (status {status})")]
    SignIn {
        /// HTTP status.
        status: u16,
    },
    /// The cloud has no room: HTTP 429 or 503.
    #[error("the cloud takes no request now{}{}", reason_text(.reason), again_text(.retry_after_ms.as_ref()))]
    Overloaded {
        /// HTTP status, or 0 for an error event and for a request that was not sent, because the cloud asked
        /// not to be called yet.
        status: u16,
        /// The service's message.
        reason: String,
        /// How long it asks not to be called, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// Any other HTTP error or an `error` event.
    #[error("the cloud refused: {code}: {message}")]
    Refused {
        /// HTTP status, or 0 for an error event.
        status: u16,
        /// The service's code.
        code: String,
        /// The service's message.
        message: String,
    },
    /// The reply is not an event stream: a captive portal or a proxy's page.
    #[error("the reply is `{content_type}`, not an event stream: is there a sign-in page on this network?")]
    NotAnEventStream {
        /// Its content type.
        content_type: String,
    },
    /// An event cannot be parsed.
    #[error("the cloud sent a broken event: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// Its text does not have the form that was asked for.
    #[error("the cloud's answer does not have the form that was asked for, from token {at} on")]
    Form {
        /// Index of the first token that does not fit.
        at: usize,
    },
    /// The data is not what the cloud sent.
    #[error("data from the cloud arrived damaged: {reason}")]
    Damaged {
        /// Which checksum is wrong.
        reason: String,
    },
    /// The cloud sent more bytes than an answer may have.
    #[error("the cloud sent more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// The cloud speaks another protocol version.
    #[error("the cloud speaks protocol {theirs}, this device speaks {ours}")]
    Version {
        /// This device's version.
        ours: u32,
        /// The cloud's version.
        theirs: u32,
    },
    /// The stream ended without an `end` event.
    #[error("the connection to the cloud broke")]
    Disconnected,
    /// The cloud cancelled the answer.
    #[error("the cloud cancelled the answer")]
    Cancelled,
    /// No event came in time.
    #[error("the cloud was silent for {waited_ms} ms")]
    Silent {
        /// How long the cloud was silent, in milliseconds.
        waited_ms: u64,
    },
    /// The privacy check failed, so nothing was sent.
    #[error("nothing was sent, because the privacy check failed: {reason}")]
    Privacy {
        /// What failed; never holds user text.
        reason: String,
    },
}

fn reason_text(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

fn again_text(retry_after_ms: Option<&u64>) -> String {
    let time = retry_after_ms.and_then(|ms| time_text(*ms as f64));
    time.map_or_else(String::new, |time| format!("; try again in {time}"))
}

/// Formats a time in milliseconds with the precision of an estimate; returns `None` if it is not a valid
/// time.
pub(crate) fn time_text(ms: f64) -> Option<String> {
    let seconds = ms / 1e3;
    if !seconds.is_finite() || seconds < 0.0 {
        return None;
    }
    Some(match seconds {
        0.0..1.5 => "1 s".to_owned(),
        1.5..90.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", (seconds / 60.0).min(999.0)),
    })
}

impl CloudFault {
    /// Returns when the cloud may be asked again, in milliseconds, if it says so.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }

    /// Returns whether the prompt does not fit the cloud's model.
    pub(super) fn is_too_long(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == ErrorCode::PromptTooLong.as_str())
    }

    /// Returns whether the cloud refuses what was asked, such as messages that its model's template refuses.
    fn is_invalid(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == ErrorCode::InvalidRequest.as_str())
    }

    /// Returns whether this cloud would give the same answer however long one waits.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::SignIn { .. } | Self::Version { .. } | Self::Privacy { .. })
    }

    /// Returns the stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "cloud_unreachable",
            Self::SignIn { .. } => "sign_in",
            Self::Overloaded { .. } => CLOUD_OVERLOADED,
            Self::Refused { .. } => "cloud_refused",
            Self::NotAnEventStream { .. } => "not_an_event_stream",
            Self::Malformed { .. } => "cloud_malformed",
            Self::Form { .. } => "cloud_form",
            Self::Damaged { .. } => "cloud_damaged",
            Self::TooLarge { .. } => "cloud_too_large",
            Self::Version { .. } => "protocol_version",
            Self::Disconnected => "cloud_disconnected",
            Self::Cancelled => "cloud_cancelled",
            Self::Silent { .. } => "cloud_silent",
            Self::Privacy { .. } => "privacy_check_failed",
        }
    }
}

/// A message about an answer for the person; never an error of the answer itself.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Note {
    /// The device goes on without the cloud, from this token on.
    #[error("{fault}; this device answers from token {at}")]
    WithoutCloud {
        /// Why.
        fault: CloudFault,
        /// Index of the first token that is not the cloud's.
        at: usize,
    },
    /// The device had its first token before the cloud had.
    #[error("the cloud was slower than this device; it was cancelled")]
    CloudTooSlow,
    /// The mask does not fit the text; the whole prompt is used.
    #[error("mask ignored, the whole prompt is used: {reason}")]
    MaskIgnored {
        /// What is wrong with it.
        reason: String,
    },
    /// The cloud did not write the agreed number of tokens.
    #[error("the cloud wrote {got} of {want} tokens")]
    TokenCount {
        /// Number of agreed tokens.
        want: usize,
        /// Number of usable tokens.
        got: usize,
    },
    /// Tokens came twice, out of order or past the agreed number; only the contiguous prefix is used.
    #[error("the cloud's tokens came out of order at token {at}")]
    Disorder {
        /// Index of the first such token.
        at: usize,
    },
    /// The whole prompt does not fit; the least relevant sentences were left out.
    #[error("the prompt has {tokens} tokens, the {taker} takes {limit}: shortened to {kept}")]
    PromptShortened {
        /// For whom it is too long.
        taker: Source,
        /// Tokens of the whole prompt.
        tokens: usize,
        /// Most tokens that fit.
        limit: usize,
        /// Tokens of the shortened prompt.
        kept: usize,
    },
    /// The device cannot go on; the cloud was asked to continue.
    #[error("this device cannot go on ({reason}); the cloud continues from token {at}")]
    CloudContinues {
        /// First token index after the accepted text.
        at: usize,
        /// Why.
        reason: String,
    },
    /// Some of the cloud's tokens were replaced by the device's own before they were shown.
    #[error("{tokens} cloud tokens from token {at} on were replaced by this device's own")]
    Corrected {
        /// Index of the first replaced token.
        at: usize,
        /// Number of replaced tokens.
        tokens: usize,
    },
    /// The cloud checks the answer no more.
    #[error("{fault}; from token {at} on the answer is not verified by the cloud")]
    Unverified {
        /// Why.
        fault: CloudFault,
        /// Index of the first token that is not verified.
        at: usize,
    },
    /// The scene could not be fetched.
    #[error("the scene `{scene}` was not fetched ({reason}); {used} settings are used")]
    SceneNotFetched {
        /// Its id.
        scene: String,
        /// Why.
        reason: String,
        /// "cached" or "built-in".
        used: &'static str,
    },
    /// The scene names an adapter that this device does not have.
    #[error("this device has no adapter `{adapter}` and answers without it; pass --adapter {adapter}=FILE")]
    AdapterMissing {
        /// Its name.
        adapter: String,
    },
    /// The answer has as many tokens as it may have, and is not whole.
    #[error(
        "the answer was cut at {tokens} tokens, the most that it may have; for more, pass --max-tokens {more}"
    )]
    CutAtLimit {
        /// Its tokens.
        tokens: usize,
        /// A larger limit.
        more: usize,
    },
    /// There was no room for more of the answer.
    #[error(
        "the answer was cut at {tokens} tokens, because there was no room for more: ask about less, or give this \
         device more room (--kv-tokens)"
    )]
    CutForRoom {
        /// Its tokens.
        tokens: usize,
    },
    /// Private values were replaced before the request was sent.
    #[error("replaced: {0}")]
    Redacted(Replaced),
}

impl Note {
    /// Returns the note as it is kept on the disk, without private values.
    #[must_use]
    pub fn kept(&self) -> Self {
        match self {
            Self::Redacted(replaced) => Self::Redacted(replaced.without_names()),
            note => note.clone(),
        }
    }

    /// Returns the stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WithoutCloud { fault, .. } => fault.code(),
            Self::CloudTooSlow => "cloud_too_slow",
            Self::MaskIgnored { .. } => "mask_ignored",
            Self::TokenCount { .. } => "token_count",
            Self::Disorder { .. } => "disorder",
            Self::PromptShortened { .. } => "prompt_shortened",
            Self::CloudContinues { .. } => "cloud_continues",
            Self::Corrected { .. } => "corrected",
            Self::Unverified { .. } => "unverified",
            Self::SceneNotFetched { .. } => "scene_not_fetched",
            Self::AdapterMissing { .. } => "adapter_missing",
            Self::CutAtLimit { .. } => "cut_at_limit",
            Self::CutForRoom { .. } => "cut_for_room",
            Self::Redacted(_) => "redacted",
        }
    }
}

/// Writes a note as JSON: `{"code": ..., "message": ...}`.
impl Serialize for Note {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Note", 2)?;
        out.serialize_field("code", self.code())?;
        out.serialize_field("message", &format_args!("{self}").to_string())?;
        out.end()
    }
}

/// Why the answer could not be finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The cloud failed, and there is no device model to go on with.
    #[error("{0}")]
    Cloud(CloudFault),
    /// The prompt fits neither this device nor the cloud, if there is one.
    #[error(
        "the prompt has {tokens} tokens, this device takes at most {limit}, because it keeps up to a quarter \
         of its room for the answer: send less, or give it more room (--kv-tokens)"
    )]
    TooLong {
        /// Number of its tokens.
        tokens: usize,
        /// Most tokens that this device takes.
        limit: usize,
    },
    /// The device's engine failed, and no cloud may go on instead.
    #[error(
        "this device cannot go on ({reason}) and no cloud may be asked to; what was written stays: ask again, or let a \
         cloud finish such answers (--cloud URL, mode `relay`)"
    )]
    Device {
        /// The engine's message.
        reason: String,
    },
    /// The device's engine failed, and so did the cloud that was to go on.
    #[error(
        "neither this device ({reason}) nor the cloud ({fault}) can go on; what was written stays: ask again"
    )]
    DeviceAndCloud {
        /// The engine's message.
        reason: String,
        /// The cloud's fault.
        fault: CloudFault,
    },
}

/// The name of a fault that goes by with time.
pub(crate) const CLOUD_OVERLOADED: &str = "cloud_overloaded";
/// The name of a request that the cloud refuses however often it is sent.
pub(crate) const INVALID: &str = "invalid_request";
/// OpenAI's name for a prompt that does not fit.
pub(crate) const TOO_LONG: &str = "context_length_exceeded";

impl AnswerError {
    /// Returns the stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => TOO_LONG,
            Self::Cloud(fault) if fault.is_too_long() => TOO_LONG,
            Self::Cloud(fault) if fault.is_invalid() => INVALID,
            Self::Cloud(fault) => fault.code(),
            Self::Device { .. } | Self::DeviceAndCloud { .. } => "device_failed",
        }
    }

    /// Returns when to ask again, in milliseconds, if it is known.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Cloud(fault) => fault.retry_after_ms(),
            Self::TooLong { .. } | Self::Device { .. } | Self::DeviceAndCloud { .. } => None,
        }
    }
}

/// Writes the name for log lines and messages.
impl fmt::Display for super::event::Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cloud => "cloud",
            Self::Device => "device",
        })
    }
}
