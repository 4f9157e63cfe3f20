//! What a seed makes: machines, questions and faults.
//!
//! Every question and every fault has its own numbers, so a scenario without some of them is the same for the
//! others. That is what shrinking needs.

use baton_device::relay::RelayMode;
use baton_engine::pace_emulation::PassCost;
use baton_protocol::{Corrector, Role, Sampling, Segment, VerifyPolicy};
use baton_random::{SplitMix64, mix};

use super::engine::Voice;

/// A value that must not leave a device; it stands in every prompt.
pub(super) const CANARY: &str = "canary.nightingale@private-home.org";

/// A whole simulated world and what happens in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The seed that it was made of.
    pub seed: u64,
    /// The cloud.
    pub cloud: CloudShape,
    /// The devices.
    pub devices: Vec<DeviceShape>,
    /// The questions, in the order of their numbers.
    pub questions: Vec<Question>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// How the cloud is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudShape {
    /// Answers at the same time.
    pub slots: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Tokens of the KV cache.
    pub kv_tokens: usize,
    /// What it writes.
    pub voice: Voice,
    /// How long a pass takes.
    pub cost: PassCost,
    /// Prompt and answer tokens of the tenant in a day.
    pub tokens_per_day: Option<u64>,
    /// Requests of the tenant at the same time.
    pub concurrency_max: Option<u32>,
    /// The scene's r.
    pub ratio: f32,
    /// The scene's corrector.
    pub corrector: Corrector,
    /// Whether the scene has answers verified.
    pub verify: VerifyPolicy,
    /// Whether the scene offers keys and values.
    pub moves_kv: bool,
    /// Bytes of keys and values that come over a line in a second.
    pub kv_bytes_per_s: u64,
    /// Whether usage is kept by the program's store, which takes longer than its model.
    pub stores: bool,
}

/// How a device is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceShape {
    /// What it writes.
    pub voice: Voice,
    /// Answers at the same time.
    pub answers: usize,
    /// Whether its tokenizer differs from the cloud's.
    pub other_tokenizer: bool,
    /// Tokens of the KV cache.
    pub kv_tokens: usize,
    /// How long a pass takes.
    pub cost: PassCost,
    /// Latency of one direction, in microseconds.
    pub latency_us: u64,
    /// By how much it varies, in microseconds.
    pub jitter_us: u64,
    /// The seed of the ring that computes for it; none if it computes alone.
    pub ring: Option<u64>,
}

/// A question of a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its number; it stays if others are left out.
    pub number: usize,
    /// The device that is asked.
    pub device: usize,
    /// When, in milliseconds.
    pub at_ms: u64,
    /// Who may write.
    pub mode: RelayMode,
    /// How the answer is sampled.
    pub sampling: Sampling,
    /// Tokens of the answer at most.
    pub tokens_max: usize,
    /// L; none if the cloud chooses.
    pub assist_tokens: Option<u32>,
    /// Sentences of its document.
    pub sentences: usize,
    /// The person's choice of corrector.
    pub corrector: Option<Corrector>,
    /// Whether the stream may be resumed.
    pub resume: bool,
    /// Time until which the cloud must have begun, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// When the device begins although the cloud is silent, in milliseconds.
    pub hedge_after_ms: u64,
    /// Whether a program reads, so that nothing is delayed.
    pub instant: bool,
    /// Seed of its texts.
    pub seed: u64,
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Something happens to an event of a stream of the cloud.
    Line {
        /// The question.
        question: usize,
        /// The stream, in the order in which they were opened.
        stream: usize,
        /// The event of this stream.
        event: usize,
        /// What happens to it.
        what: LineFault,
    },
    /// Something happens to a draft that is sent to be checked, or to its reply.
    Check {
        /// The question.
        question: usize,
        /// The request, in the order in which they are sent.
        request: usize,
        /// What happens to it.
        what: CheckFault,
    },
    /// Something happens to keys and values on their way.
    Kv {
        /// The question.
        question: usize,
        /// The connection, in the order in which they were opened.
        fetch: usize,
        /// The piece of its stream.
        piece: usize,
        /// What happens to it.
        what: KvFault,
    },
    /// The cloud cannot be reached for some tries.
    Unreachable {
        /// The question.
        question: usize,
        /// The tries.
        tries: usize,
    },
    /// The network sends the request a second time, so much later.
    Twice {
        /// The question.
        question: usize,
        /// Milliseconds after the first one.
        after_ms: u64,
    },
    /// The cloud ends and begins anew.
    Cloud {
        /// When, in milliseconds.
        at_ms: u64,
        /// How long it is away, in milliseconds.
        down_ms: u64,
        /// Whether answers under way may end.
        drains: bool,
    },
    /// The device's program is killed.
    Device {
        /// The device.
        device: usize,
        /// When, in milliseconds.
        at_ms: u64,
    },
    /// The person leaves.
    Leave {
        /// The question.
        question: usize,
        /// Milliseconds after it was asked.
        after_ms: u64,
    },
    /// The person does not read for a while.
    Pause {
        /// The question.
        question: usize,
        /// Milliseconds after it was asked.
        after_ms: u64,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
    /// Steps of an engine fail.
    Engine {
        /// The device, or none for the cloud.
        device: Option<usize>,
        /// When, in milliseconds.
        at_ms: u64,
        /// How many.
        steps: usize,
    },
    /// The clock on the wall jumps.
    Wall {
        /// When, in milliseconds.
        at_ms: u64,
        /// By how much, in milliseconds.
        by_ms: i64,
    },
    /// The database does not answer.
    Database {
        /// When, in milliseconds.
        at_ms: u64,
        /// For how long, in milliseconds.
        for_ms: u64,
    },
}

/// What happens to an event on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFault {
    /// The connection is cut before it.
    Cut,
    /// It and everything behind it come so many milliseconds later.
    Late(u64),
    /// Nothing comes any more, and nobody is told.
    Silence,
    /// It comes twice.
    Double,
    /// It comes after the next one.
    Swap,
    /// It is lost, the others come.
    Lose,
    /// It arrives damaged.
    Damage,
    /// If it is a mask, its bits are changed.
    Spoil,
}

/// What happens to a piece of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvFault {
    /// The connection is cut before it.
    Cut,
    /// Nothing comes any more, and nobody is told.
    Silence,
    /// A bit of it is changed.
    Damage,
    /// It and what follows come so many milliseconds later.
    Late(u64),
}

/// What happens to a draft on its way to the cloud, or to the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFault {
    /// The request is lost, and the device is told.
    Lost,
    /// The reply is lost, and the device is told.
    ReplyLost,
    /// The reply is lost, and nobody is told.
    Silence,
    /// The reply comes so many milliseconds later.
    Late(u64),
    /// The request arrives twice.
    Twice,
}

impl Scenario {
    /// Makes the scenario of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Scenario {
        let mut random = SplitMix64::new(mix(seed, 1));
        let voice = Voice {
            seed: mix(seed, 2),
            alike: [16, 14, 8][random.below(3)],
            variant: 0,
            ends: [40, 120, 1_000_000][random.below(3)],
        };
        let cloud = CloudShape {
            slots: 1 + random.below(4),
            queue: [1, 4, 64][random.below(3)],
            kv_tokens: [640, 1024, 4096][random.below(3)],
            voice,
            cost: PassCost {
                base_ms: 2.0,
                prefill_ms_per_token: 0.05,
                decode_ms: 4.0 + random.below(40) as f64,
            },
            tokens_per_day: random.percent(30).then(|| 400 + random.below(3_000) as u64),
            concurrency_max: random.percent(15).then(|| 1 + random.below(3) as u32),
            ratio: [1.0, 1.0, 0.5, 0.25][random.below(4)],
            corrector: [Corrector::Cloud, Corrector::Device][random.below(2)],
            verify: [VerifyPolicy::Off, VerifyPolicy::Off, VerifyPolicy::On, VerifyPolicy::Strict]
                [SplitMix64::new(mix(seed, 12)).below(4)],
            moves_kv: mix(seed, 14).is_multiple_of(2),
            kv_bytes_per_s: [20_000, 100_000, 5_000_000][SplitMix64::new(mix(seed, 15)).below(3)],
            stores: seed.is_multiple_of(STORE_SHARE),
        };
        let mut devices: Vec<DeviceShape> =
            (0..1 + random.below(4)).map(|at| device(mix(mix(seed, 3), at as u64), voice)).collect();
        let mut questions: Vec<Question> = Vec::new();
        for at in 0..devices.len() {
            for _ in 0..1 + random.below(3) {
                let number = questions.len();
                let mut asked = question(number, at, mix(mix(seed, 4), number as u64));
                if let Some(before) = questions.last().filter(|before| before.device == at) {
                    asked.ask_again(before, mix(mix(seed, 6), number as u64));
                }
                questions.push(asked);
            }
        }
        let count = [0, 0, 1, 1, 2, 3, 5][random.below(7)];
        let (asked, there) = (questions.len(), devices.len());
        let fault = |at: usize| fault(mix(mix(seed, 5), at as u64), asked, there);
        let mut faults: Vec<Fault> = (0..count).map(fault).collect();
        if cloud.verify != VerifyPolicy::Off && count > 0 {
            faults
                .extend(questions.iter().filter_map(|question| check_fault(question.number, mix(seed, 13))));
        }
        if cloud.moves_kv && count > 0 {
            faults.extend(questions.iter().filter_map(|question| kv_fault(question.number, mix(seed, 16))));
        }
        // Only the reader of a long answer can keep the cloud waiting.
        for long in questions.iter().filter(|question| question.tokens_max >= LONG) {
            devices[long.device].kv_tokens = 4096;
            if long.seed.is_multiple_of(2) {
                faults.push(Fault::Pause { question: long.number, after_ms: 500, for_ms: 20_000 });
            }
        }
        Scenario { seed, cloud, devices, questions, faults }
    }

    /// Returns the scenario with only these questions and faults, by their places.
    #[must_use]
    pub fn only(&self, questions: &[usize], faults: &[usize]) -> Scenario {
        Scenario {
            questions: questions.iter().filter_map(|at| self.questions.get(*at)).cloned().collect(),
            faults: faults.iter().filter_map(|at| self.faults.get(*at)).cloned().collect(),
            ..self.clone()
        }
    }
}

impl Question {
    /// Makes it the question of before once more, by chance: some time later, and with its own settings.
    fn ask_again(&mut self, before: &Question, seed: u64) {
        let mut random = SplitMix64::new(seed);
        if random.percent(AGAIN_PERCENT) {
            self.at_ms = before.at_ms + 1_000 + random.below(12_000) as u64;
            (self.sentences, self.seed) = (before.sentences, before.seed);
        }
    }

    /// Returns its prompt, as the person wrote it.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        let mut random = SplitMix64::new(self.seed);
        let mut document = String::new();
        for _ in 0..self.sentences {
            for word in 0..2 + random.below(5) {
                document.push_str(if word == 0 { "" } else { " " });
                document.push_str(WORDS[random.below(WORDS.len())]);
            }
            document.push_str(". ");
        }
        vec![
            Segment::fixed(Role::System, "Answer."),
            Segment::refinable(Role::User, document),
            Segment::fixed(Role::User, format!("Tell {CANARY} about {}?", WORDS[random.below(WORDS.len())])),
        ]
    }
}

/// Tokens of a long answer at least: more than all buffers between the cloud and a reader hold.
const LONG: usize = 700;
/// Long answers in a hundred that the cloud writes alone.
const LONG_PERCENT: usize = 6;
/// Questions in a hundred that are asked once more.
const AGAIN_PERCENT: usize = 30;
/// One of so many seeds has the program's store.
const STORE_SHARE: u64 = 8;
/// Devices in a hundred that are the head of a ring.
const RING_PERCENT: usize = 10;
const WORDS: [&str; 12] =
    ["hen", "a", "river", "blue", "of", "stones", "the", "wind", "goes", "home", "under", "six"];

fn device(seed: u64, cloud: Voice) -> DeviceShape {
    let mut random = SplitMix64::new(seed);
    let same = random.percent(50);
    DeviceShape {
        voice: if same { cloud } else { Voice { variant: 1 + seed % 1_000, ..cloud } },
        answers: 1 + random.below(4),
        other_tokenizer: random.percent(20),
        kv_tokens: [512, 1024, 2048][random.below(3)],
        cost: PassCost {
            base_ms: 0.0,
            prefill_ms_per_token: 0.2 + random.unit() * 3.0,
            decode_ms: 10.0 + random.unit() * 70.0,
        },
        latency_us: 500 + random.below(80_000) as u64,
        jitter_us: random.below(30_000) as u64,
        ring: random.percent(RING_PERCENT).then(|| mix(seed, 11)),
    }
}

fn question(number: usize, device: usize, seed: u64) -> Question {
    let mut random = SplitMix64::new(seed);
    let modes =
        [RelayMode::Relay, RelayMode::Relay, RelayMode::Relay, RelayMode::CloudOnly, RelayMode::DeviceOnly];
    let warm = random.percent(40);
    let stops = [&["ab"][..], &["d i", "..."], &["."]];
    let mode = modes[random.below(modes.len())];
    let long = mode == RelayMode::CloudOnly && random.percent(LONG_PERCENT);
    Question {
        number,
        device,
        at_ms: random.below(1_500) as u64,
        mode,
        sampling: Sampling {
            temperature: if warm { 0.9 } else { 0.0 },
            top_p: (warm && random.percent(50)).then_some(0.9),
            seed: if warm { seed } else { 0 },
            stop: match random.percent(25) {
                true => stops[random.below(stops.len())].iter().map(|stop| (*stop).to_owned()).collect(),
                false => Vec::new(),
            },
            ..Sampling::default()
        },
        tokens_max: if long { LONG + random.below(200) } else { 4 + random.below(60) },
        assist_tokens: random.percent(60).then(|| 1 + random.below(30) as u32),
        sentences: 2 + random.below(16),
        corrector: random.percent(30).then(|| [Corrector::Cloud, Corrector::Device][random.below(2)]),
        resume: random.percent(60),
        deadline_ms: random.percent(15).then(|| 20 + random.below(2_000) as u64),
        hedge_after_ms: [200, 1_000, 10_000][random.below(3)],
        instant: random.percent(30),
        seed: mix(seed, 9),
    }
}

fn fault(seed: u64, questions: usize, devices: usize) -> Fault {
    let mut random = SplitMix64::new(seed);
    let question = random.below(questions);
    let device = random.below(devices);
    let at_ms = random.below(6_000) as u64;
    let soon = random.below(3_000) as u64;
    match random.below(20) {
        0..=7 => Fault::Line {
            question,
            stream: usize::from(random.percent(20)),
            event: random.below(1 + random.clone().below(40)),
            what: line_fault(&mut random),
        },
        8 => Fault::Unreachable { question, tries: 1 + random.below(2) },
        9 => Fault::Twice { question, after_ms: random.below(400) as u64 },
        10 | 11 => Fault::Cloud { at_ms, down_ms: 10 + soon, drains: random.percent(40) },
        12 => Fault::Device { device, at_ms },
        13 | 14 => Fault::Leave { question, after_ms: soon },
        15 => Fault::Pause { question, after_ms: soon, for_ms: 100 + 4 * soon },
        16 => {
            Fault::Engine { device: random.percent(70).then_some(device), at_ms, steps: 1 + random.below(2) }
        }
        17 => {
            let by_ms = [86_400_000, 3 * 86_400_000, -86_400_000, 3_600_000][random.below(4)];
            Fault::Wall { at_ms, by_ms }
        }
        _ => Fault::Database { at_ms, for_ms: 10 + 4 * soon },
    }
}

/// Returns what happens to a draft of this question, if anything does.
fn check_fault(question: usize, seed: u64) -> Option<Fault> {
    let mut random = SplitMix64::new(mix(seed, question as u64));
    let what = match random.below(10) {
        0 => CheckFault::Lost,
        1 => CheckFault::ReplyLost,
        2 => CheckFault::Silence,
        3 => CheckFault::Late(random.below(3_000) as u64),
        4 => CheckFault::Twice,
        _ => return None,
    };
    Some(Fault::Check { question, request: random.below(6), what })
}

/// Returns what happens to keys and values of this question, if anything does.
fn kv_fault(question: usize, seed: u64) -> Option<Fault> {
    let mut random = SplitMix64::new(mix(seed, question as u64));
    let what = match random.below(8) {
        0 | 1 => KvFault::Cut,
        2 => KvFault::Silence,
        3 => KvFault::Damage,
        4 => KvFault::Late(random.below(400) as u64),
        _ => return None,
    };
    let fetch = usize::from(random.percent(20));
    Some(Fault::Kv { question, fetch, piece: random.below(12), what })
}

fn line_fault(random: &mut SplitMix64) -> LineFault {
    match random.below(16) {
        0..=4 => LineFault::Cut,
        5..=7 => LineFault::Late(random.below(5_000) as u64),
        8 => LineFault::Silence,
        9 | 10 => LineFault::Double,
        11 | 12 => LineFault::Swap,
        13 => LineFault::Lose,
        14 => LineFault::Damage,
        _ => LineFault::Spoil,
    }
}
