//! What the cores have to say to people. The host writes it to the log.

/// A remark for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A device of the ring is lost.
    Lost {
        /// Its name.
        device: String,
        /// The reason.
        words: String,
    },
    /// A link of the ring broke for the first time; the device stays.
    LinkBroke {
        /// The device that it led to.
        device: String,
        /// The reason.
        words: String,
    },
    /// A device leaves the ring.
    Left {
        /// Its name.
        device: String,
        /// The reason.
        words: String,
    },
    /// A device that was to join leaves before it took part.
    LeftBefore {
        /// Its name.
        device: String,
        /// The reason.
        words: String,
    },
    /// The path from this device to another cannot be measured; it counts as the slowest known one.
    NotMeasured {
        /// The other device's name or address.
        device: String,
        /// The reason.
        words: String,
    },
    /// The path between two other devices cannot be measured.
    PairNotMeasured {
        /// Name of the one.
        from: String,
        /// Name of the other.
        to: String,
    },
    /// The ring cannot be formed again now.
    NotFormed {
        /// The reason.
        words: String,
    },
    /// There is no ring with the devices that came; they leave.
    NoRingWith {
        /// The reason.
        words: String,
    },
    /// A device fetches its weights before it takes part.
    Fetches {
        /// Its name.
        device: String,
    },
    /// A device is not taken into the ring.
    NotIn {
        /// Its address.
        address: String,
        /// The reason.
        words: String,
    },
    /// A device that computed wrong is not taken into the ring.
    Barred {
        /// Its address.
        address: String,
    },
    /// Devices are not as they were when the plan was made, so there is a new one.
    PlannedAnew,
    /// A token of the health check, or an audit, did not come round the ring.
    CheckBroke {
        /// The reason.
        words: String,
    },
    /// The head's own model is damaged.
    Damaged {
        /// The reason.
        words: String,
    },
    /// The head does not take this device's results.
    Distrusted {
        /// The head's words.
        words: String,
    },
    /// The head sent what is no frame, or a frame that is not the head's to send.
    BadHead {
        /// The reason.
        words: String,
    },
    /// A device gave no weights.
    NoWeightsFrom {
        /// Its address.
        address: String,
        /// The reason.
        words: String,
    },
    /// Weights that a device gave are not used.
    WeightsNotUsed {
        /// Its address.
        address: String,
        /// The reason.
        words: String,
    },
}

/// How much a remark matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteLevel {
    /// Of interest to those who look for a fault.
    Debug,
    /// The usual course.
    Info,
    /// Something did not work.
    Warn,
    /// A person must act.
    Error,
}

impl Note {
    /// Returns how much the remark matters.
    pub fn level(&self) -> NoteLevel {
        match self {
            Self::Fetches { .. } | Self::PlannedAnew => NoteLevel::Info,
            Self::Barred { .. } | Self::NoWeightsFrom { .. } => NoteLevel::Debug,
            Self::Damaged { .. } => NoteLevel::Error,
            _ => NoteLevel::Warn,
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { device, words } => write!(f, "a device of the ring is lost: `{device}`: {words}"),
            Self::LinkBroke { device, words } => write!(f, "a link of the ring broke: `{device}`: {words}"),
            Self::Left { device, words } => write!(f, "a device leaves the ring: `{device}`: {words}"),
            Self::LeftBefore { device, words } => {
                write!(f, "a device leaves before it took part: `{device}`: {words}")
            }
            Self::NotMeasured { device, words } => write!(
                f,
                "the network path to `{device}` cannot be measured and counts as the slowest known one: {words}"
            ),
            Self::PairNotMeasured { from, to } => {
                write!(f, "the network path from `{from}` to `{to}` cannot be measured")
            }
            Self::NotFormed { words } => write!(f, "the ring cannot be formed again: {words}"),
            Self::NoRingWith { words } => write!(f, "no ring with the devices that came: {words}"),
            Self::Fetches { device } => {
                write!(f, "a device fetches its weights before it takes part: `{device}`")
            }
            Self::NotIn { address, words } => write!(f, "a device cannot join: {address}: {words}"),
            Self::Barred { address } => {
                write!(f, "a device that computed wrong is not taken in: {address}")
            }
            Self::PlannedAnew => f.write_str("the ring is planned anew: devices are not as they were"),
            Self::CheckBroke { words } => {
                write!(f, "a token or an audit for the ring's health did not come round the ring: {words}")
            }
            Self::Damaged { words } => write!(f, "the head's own model is damaged: {words}"),
            Self::Distrusted { words } => {
                write!(f, "the head does not take this device's results: {words}")
            }
            Self::BadHead { words } => write!(f, "the head's session ends: {words}"),
            Self::NoWeightsFrom { address, words } => {
                write!(f, "a device has no weights: {address}: {words}")
            }
            Self::WeightsNotUsed { address, words } => {
                write!(f, "weights of a device are not used: {address}: {words}")
            }
        }
    }
}
