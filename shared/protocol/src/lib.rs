//! The assist protocol between device and cloud: wire types, the sentence segmenter that both sides share,
//! and the mask that names the sentences to keep.
//!
//! No I/O, no async, no clock. Nothing here panics on what a peer sent: bytes from outside give a checked
//! value or a typed error. Requests are strict: unknown fields are refused, and every number has a range.
//! Replies are tolerant: unknown fields are ignored and unknown events skipped, so that an older device can
//! talk to a newer cloud.
//!
//! What always holds: both sides compute the same [`SentenceMap`] from the same bytes. A mask that does not
//! fit that map is refused, never applied.

mod checksum;
mod error;
mod event;
mod kv;
mod map;
mod mask;
mod mask_event;
mod pair;
mod progress;
mod range;
mod request;
mod scene;
mod segmenter;
mod shape;
mod tools;
mod verify;

pub mod lines;

pub use checksum::{ChecksumError, StreamChecksum};
pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use event::{
    ArmEvent, AssistEvent, EndEvent, EndReason, ErrorEvent, EventError, FirstEvent, SlotTiming, Timing,
    TokenEvent, Usage,
};
pub use kv::{HEAD_BYTES, KvEncoding, KvFrameError, KvFrames, KvLayer, KvLayout, KvPlace, KvTicket};
pub use map::{SentenceMap, Unit};
pub use mask::{
    MASK_OVERHEAD_MAX, MaskError, decode_mask, decode_token_mask, encode_mask, encode_token_mask,
};
pub use mask_event::MaskEvent;
pub use pair::{BadModelVersion, ModelPair, ModelVersion};
pub use progress::{ProgressEvent, ProgressStage};
pub use range::{Bounded, NumberRange, OutOfRange};
pub use request::{AssistRequest, DeviceInfo, RefineOptions, RequestError, Role, Sampling, Segment, limits};
pub use scene::{
    Absent, Corrector, DEFAULT_MODE, SCENE_TEXT_BYTES_MAX, SceneInfo, SceneSettings, SettingChange,
    SettingField, SettingGroup, SettingKind, SettingsError, is_model_name,
};
pub use segmenter::{SEGMENTER_ID, SEGMENTER_NAME, is_cjk, sentences};
pub use shape::{MARKS_MAX, NAME_BYTES_MAX, SMALL_TEXT_BYTES_MAX, ShapeError, check_shape};
pub use tools::{AnswerFormat, Markup, PastCall, TOOL_NAME_FORM, Tool, ToolChoice, ToolUse};
pub use verify::{
    AT_LEAST_MAX, DRAFT_TOKENS_MAX, VerifyError, VerifyOffer, VerifyPolicy, VerifyReply, VerifyRequest,
    VerifyTiming, answer_digest,
};

/// Version of the assist protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 1;
