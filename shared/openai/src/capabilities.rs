//! Which parts of the API a program offers.
//!
//! A field that a program does not offer is refused by name, with the same message in both programs. A value
//! that asks for nothing (null, an empty list, 0, false, `none`) is accepted by both.

/// The most tokens of an answer that a client may ask a device for.
pub const DEVICE_TOKENS_MAX: u64 = 65_536;

/// Which parts of the API a program offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether answers may call tools, and messages may contain calls and their results.
    pub tools: bool,
    /// Whether an answer can be constrained to JSON or to a schema.
    pub formats: bool,
    /// Whether log probabilities of the answer's tokens can be requested.
    pub logprobs: bool,
    /// Whether `frequency_penalty` and `presence_penalty` are supported.
    pub penalties: bool,
    /// Whether the field `baton` is supported: assistance by a scene.
    pub baton: bool,
    /// Whether `truncation: "auto"` is supported: a prompt that does not fit is shortened.
    pub truncation: bool,
    /// Whether a request must name its model. If not, a request without a name gets the only model.
    pub model_required: bool,
    /// The most messages of a request, or `None` for as many as a body can hold.
    pub messages_max: Option<usize>,
    /// The largest `max_tokens` of a request, or `None` for any: the context bounds the answer anyway.
    pub tokens_max: Option<u64>,
    /// `max_tokens` of a request that does not set it, or `None` for as many tokens as fit into the context.
    pub tokens_default: Option<usize>,
}

impl Capabilities {
    /// What the cloud service offers.
    pub const CLOUD: Capabilities = Capabilities {
        tools: true,
        formats: true,
        logprobs: true,
        penalties: true,
        baton: true,
        truncation: false,
        model_required: true,
        messages_max: None,
        tokens_max: None,
        tokens_default: None,
    };

    /// What the device agent offers. A cloud may write a part of its answers, and the assist protocol has no
    /// penalties.
    pub const DEVICE: Capabilities = Capabilities {
        tools: true,
        formats: true,
        logprobs: false,
        penalties: false,
        baton: false,
        truncation: true,
        model_required: false,
        messages_max: Some(1024),
        tokens_max: Some(DEVICE_TOKENS_MAX),
        tokens_default: Some(512),
    };

    /// What the device agent offers if only a cloud that knows no tools writes its answers.
    pub const DEVICE_OF_CLOUD: Capabilities =
        Capabilities { tools: false, formats: false, ..Capabilities::DEVICE };
}
