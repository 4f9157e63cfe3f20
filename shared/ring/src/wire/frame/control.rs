//! Frames of the control channel between head and worker.

use std::time::Duration;

use baton_engine::SlidingWindow;
use baton_engine::engine::KvFormat;
use baton_plan::{Device, Window};

use super::bytes::{Reader, Writer};
use super::profile::{read_device, write_device};
use super::step::Activations;
use super::{ECHO_BYTES_MAX, FrameError, KV_TOKENS_MAX, kind};
use crate::core::ids::{DeviceId, Digest, Epoch, Node};

/// Most bytes of a device's name or address.
const NAME_BYTES_MAX: usize = 256;
/// Most bytes of an explanation.
const WORDS_BYTES_MAX: usize = 4096;
/// Bytes of a window.
const WINDOW_BYTES: usize = 10;
/// Bytes of a layer's number.
const LAYER_BYTES: usize = 2;
/// Least bytes of a device's address and key.
const NODE_BYTES: usize = 4 + 32;

/// A worker introduces itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The name that people gave it.
    pub name: String,
    /// Its own measurements, to plan with; `None` if it only relays.
    pub device: Option<Device>,
}

/// A worker's part in one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Configure {
    /// The epoch, greater than every earlier one.
    pub epoch: Epoch,
    /// The worker's place in the ring; the head is place 0.
    pub place: u16,
    /// Layers of the model.
    pub n_layers: u16,
    /// Values of a hidden state.
    pub width: u32,
    /// Bytes of the worker's memory for weights that are used to read ahead while other devices compute.
    pub prefetch_bytes: u64,
    /// Whether weights are read ahead of the computation.
    pub reads_ahead: bool,
    /// All windows of all places, in the order in which a token passes them.
    pub windows: Vec<Window>,
    /// The model file: SHA-256 of the list of its pieces.
    pub model: Digest,
    /// Tokens of the KV cache.
    pub kv_tokens: u64,
    /// The format of keys and values.
    pub kv_format: KvFormat,
    /// Percent of the cache for prefixes that no present sequence uses.
    pub prefix_percent: u8,
    /// Sliding-window attention in place of the model's own.
    pub window: Option<SlidingWindow>,
    /// The next device of the ring.
    pub next: Node,
    /// The device before this one.
    pub before: DeviceId,
    /// The other workers of the ring, which may have weights that this one lacks.
    pub others: Vec<Node>,
    /// The format of hidden states between devices.
    pub activations: Activations,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// How long a frame may take to the next device.
    pub hop: Duration,
}

/// What a worker has to fetch before it has a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provide {
    /// The model file: SHA-256 of the list of its pieces.
    pub model: Digest,
    /// The layers that it is likely to get, ascending.
    pub layers: Vec<u16>,
    /// Other workers, which may have weights that this one lacks.
    pub others: Vec<Node>,
}

/// Shows that a worker lives, and what it has done in this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heartbeat {
    /// The epoch that the counts belong to; 0 before the first.
    pub epoch: Epoch,
    /// Frames received from the place before.
    pub received: u64,
    /// Frames that were sent on.
    pub sent: u64,
    /// Frames that were refused, such as those of an old epoch.
    pub refused: u64,
    /// Microseconds of computing.
    pub compute_us: u64,
    /// Microseconds without a frame to work on.
    pub wait_us: u64,
    /// Microseconds of sending.
    pub send_us: u64,
    /// Bytes received from the place before.
    pub bytes_in: u64,
    /// Bytes sent on.
    pub bytes_out: u64,
    /// Frames of one row that were computed.
    pub singles: u64,
    /// Microseconds of computing them.
    pub singles_us: u64,
    /// Bytes that a model may use on the device now; 0 if it is not known.
    pub memory_bytes: u64,
}

/// Why a worker cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCode {
    /// The device before it is gone.
    Before,
    /// The device after it is gone, or does not take its frames.
    Next,
    /// The device before it sent frames that do not fit, or values that are not numbers.
    Refused,
    /// Its own engine failed.
    Engine,
    /// It cannot get its weights.
    Weights,
    /// It serves another head.
    Busy,
}

/// A worker cannot go on in this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The epoch.
    pub epoch: Epoch,
    /// The probable cause.
    pub code: FailureCode,
    /// A message for people.
    pub words: String,
}

/// A piece of the model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceData {
    /// Its number in the list of pieces.
    pub index: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Bytes that are sent there and back, to measure the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoData {
    /// Number of the echo.
    pub number: u32,
    /// Bytes that the answer shall have; 0 in an answer.
    pub reply: u32,
    /// Any bytes.
    pub bytes: Vec<u8>,
}

/// Latency and bandwidth between two devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// Seconds until the first byte arrives.
    pub latency_s: f64,
    /// Bytes per second after the first byte, there.
    pub there_bytes_per_s: f64,
    /// Bytes per second after the first byte, back.
    pub back_bytes_per_s: f64,
}

/// The result of measuring a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredLink {
    /// The device that it leads to.
    pub to: DeviceId,
    /// Latency and bandwidth; `None` if the device was not reached.
    pub speed: Option<LinkSpeed>,
}

pub(super) fn write_echo(out: &mut Writer<'_>, kind: u8, echo: &EchoData) {
    out.u8(kind);
    out.u32(echo.number);
    out.u32(echo.reply);
    out.bytes(&echo.bytes);
}

pub(super) fn read_echo(from: &mut Reader<'_>) -> Result<EchoData, FrameError> {
    let (number, reply) = (from.u32("echo")?, from.u32("bytes of a reply")?);
    let bytes = from.bytes("bytes of an echo")?;
    let most = reply.max(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    if most > ECHO_BYTES_MAX {
        let max = u64::from(ECHO_BYTES_MAX);
        return Err(FrameError::Value { what: "bytes of an echo", value: u64::from(most), max });
    }
    Ok(EchoData { number, reply, bytes: bytes.to_vec() })
}

pub(super) fn write_node(out: &mut Writer<'_>, node: &Node) {
    out.bytes(node.address.as_bytes());
    out.0.extend_from_slice(&node.device.0);
}

pub(super) fn read_node(from: &mut Reader<'_>) -> Result<Node, FrameError> {
    let address = from.text("address", NAME_BYTES_MAX)?;
    Ok(Node { device: DeviceId(from.key("key")?), address })
}

fn read_nodes(from: &mut Reader<'_>) -> Result<Vec<Node>, FrameError> {
    let count = from.count("other workers", NODE_BYTES)?;
    (0..count).map(|_| read_node(from)).collect()
}

pub(super) fn write_link_speed(out: &mut Writer<'_>, to: &MeasuredLink) {
    out.u8(kind::EDGE);
    out.0.extend_from_slice(&to.to.0);
    out.u8(u8::from(to.speed.is_some()));
    if let Some(speed) = to.speed {
        [speed.latency_s, speed.there_bytes_per_s, speed.back_bytes_per_s]
            .into_iter()
            .for_each(|n| out.f64(n));
    }
}

pub(super) fn read_link_speed(from: &mut Reader<'_>) -> Result<MeasuredLink, FrameError> {
    let to = DeviceId(from.key("key")?);
    if !from.flag("way")? {
        return Ok(MeasuredLink { to, speed: None });
    }
    let (latency_s, there, back) = (from.f64("latency")?, from.f64("bytes there")?, from.f64("bytes back")?);
    let positive = |value: f64| value.is_finite() && value > 0.0;
    if !(latency_s >= 0.0 && latency_s.is_finite() && positive(there) && positive(back)) {
        return Err(FrameError::Mismatch { what: "latency and rates of a way" });
    }
    Ok(MeasuredLink {
        to,
        speed: Some(LinkSpeed { latency_s, there_bytes_per_s: there, back_bytes_per_s: back }),
    })
}

pub(super) fn write_hello(out: &mut Writer<'_>, hello: &Hello) {
    out.u8(kind::HELLO);
    out.bytes(hello.name.as_bytes());
    out.u8(u8::from(hello.device.is_some()));
    if let Some(device) = &hello.device {
        write_device(out, device);
    }
}

pub(super) fn read_hello(from: &mut Reader<'_>) -> Result<Hello, FrameError> {
    let name = from.text("name", NAME_BYTES_MAX)?;
    let device = if from.flag("profile")? { Some(read_device(from)?) } else { None };
    Ok(Hello { name, device })
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

pub(super) fn write_configure(out: &mut Writer<'_>, configure: &Configure) {
    out.u8(kind::CONFIGURE);
    out.u64(configure.epoch.0);
    out.u16(configure.place);
    out.u16(configure.n_layers);
    out.u32(configure.width);
    out.u64(configure.prefetch_bytes);
    out.u8(u8::from(configure.reads_ahead));
    out.count(configure.windows.len());
    for window in &configure.windows {
        for part in [window.round, window.place, window.begin, window.end, window.gpu] {
            out.u16(u16::try_from(part).expect("rounds, places and layers are below 65536"));
        }
    }
    out.0.extend_from_slice(&configure.model);
    out.u64(configure.kv_tokens);
    out.u8(match configure.kv_format {
        KvFormat::F32 => 0,
        KvFormat::F16 => 1,
        KvFormat::Q8 => 2,
        KvFormat::Q4 => 3,
    });
    out.u8(configure.prefix_percent);
    out.u8(u8::from(configure.window.is_some()));
    if let Some(window) = configure.window {
        out.u64(window.sinks as u64);
        out.u64(window.tokens as u64);
    }
    write_node(out, &configure.next);
    out.0.extend_from_slice(&configure.before.0);
    out.count(configure.others.len());
    configure.others.iter().for_each(|node| write_node(out, node));
    out.u8(u8::from(configure.activations == Activations::F16));
    out.u32(millis(configure.heartbeat));
    out.u32(millis(configure.hop));
}

pub(super) fn read_configure(from: &mut Reader<'_>) -> Result<Configure, FrameError> {
    let (epoch, place) = (Epoch(from.u64("epoch")?), from.u16("place")?);
    let (n_layers, width) = (from.u16("layers")?, from.u32("width")?);
    let prefetch_bytes = from.u64("bytes to be read ahead")?;
    let reads_ahead = from.flag("reading ahead")?;
    let count = from.count("windows", WINDOW_BYTES)?;
    let windows = (0..count).map(|_| read_window(from)).collect::<Result<Vec<_>, _>>()?;
    let joined = windows.windows(2).all(|pair| pair[0].end == pair[1].begin);
    let whole = windows.first().map_or(0, |w| w.begin) == 0;
    if !joined || !whole || windows.last().map_or(0, |w| w.end) != usize::from(n_layers) {
        return Err(FrameError::Mismatch { what: "windows and layers" });
    }
    Ok(Configure {
        epoch,
        place,
        n_layers,
        width,
        prefetch_bytes,
        reads_ahead,
        windows,
        model: from.key("model")?,
        kv_tokens: read_kv_tokens(from)?,
        kv_format: match from.u8("kv format")? {
            0 => KvFormat::F32,
            1 => KvFormat::F16,
            2 => KvFormat::Q8,
            3 => KvFormat::Q4,
            value => return Err(FrameError::Value { what: "kv format", value: u64::from(value), max: 3 }),
        },
        prefix_percent: from.u8("prefix percent")?,
        window: if from.flag("sliding window")? {
            let (sinks, tokens) = (from.u64("sinks")? as usize, from.u64("window")? as usize);
            Some(SlidingWindow { sinks, tokens })
        } else {
            None
        },
        next: read_node(from)?,
        before: DeviceId(from.key("key before")?),
        others: read_nodes(from)?,
        activations: if from.flag("activations")? { Activations::F16 } else { Activations::F32 },
        heartbeat: Duration::from_millis(u64::from(from.u32("heartbeat")?)),
        hop: Duration::from_millis(u64::from(from.u32("hop")?)),
    })
}

/// Bounded, because memory is allocated for this many tokens.
fn read_kv_tokens(from: &mut Reader<'_>) -> Result<u64, FrameError> {
    let (what, max) = ("tokens of the kv cache", KV_TOKENS_MAX);
    let value = from.u64(what)?;
    if value > max { Err(FrameError::Value { what, value, max }) } else { Ok(value) }
}

fn read_window(from: &mut Reader<'_>) -> Result<Window, FrameError> {
    let mut part = || from.u16("window").map(usize::from);
    let (round, place, begin, end, gpu) = (part()?, part()?, part()?, part()?, part()?);
    if begin >= end || gpu > end - begin {
        return Err(FrameError::Mismatch { what: "begin, end and GPU layers of a window" });
    }
    Ok(Window { round, place, begin, end, gpu })
}

pub(super) fn write_provide(out: &mut Writer<'_>, provide: &Provide) {
    out.u8(kind::PROVIDE);
    out.0.extend_from_slice(&provide.model);
    out.count(provide.layers.len());
    provide.layers.iter().for_each(|layer| out.u16(*layer));
    out.count(provide.others.len());
    provide.others.iter().for_each(|node| write_node(out, node));
}

pub(super) fn read_provide(from: &mut Reader<'_>) -> Result<Provide, FrameError> {
    let model = from.key("model")?;
    let count = from.count("layers", LAYER_BYTES)?;
    let layers = (0..count).map(|_| from.u16("layer")).collect::<Result<Vec<_>, _>>()?;
    if !layers.is_sorted_by(|a, b| a < b) {
        return Err(FrameError::Mismatch { what: "layers, which ascend," });
    }
    Ok(Provide { model, layers, others: read_nodes(from)? })
}

pub(super) fn write_heartbeat(out: &mut Writer<'_>, beat: &Heartbeat) {
    out.u8(kind::HEARTBEAT);
    let counts = [beat.epoch.0, beat.received, beat.sent, beat.refused, beat.compute_us, beat.wait_us];
    let more =
        [beat.send_us, beat.bytes_in, beat.bytes_out, beat.singles, beat.singles_us, beat.memory_bytes];
    counts.into_iter().chain(more).for_each(|count| out.u64(count));
}

pub(super) fn read_heartbeat(from: &mut Reader<'_>) -> Result<Heartbeat, FrameError> {
    let mut count = || from.u64("count");
    Ok(Heartbeat {
        epoch: Epoch(count()?),
        received: count()?,
        sent: count()?,
        refused: count()?,
        compute_us: count()?,
        wait_us: count()?,
        send_us: count()?,
        bytes_in: count()?,
        bytes_out: count()?,
        singles: count()?,
        singles_us: count()?,
        memory_bytes: count()?,
    })
}

const CODES: [FailureCode; 6] = [
    FailureCode::Before,
    FailureCode::Next,
    FailureCode::Refused,
    FailureCode::Engine,
    FailureCode::Weights,
    FailureCode::Busy,
];

pub(super) fn write_failure(out: &mut Writer<'_>, failure: &Failure) {
    out.u8(kind::FAILED);
    out.u64(failure.epoch.0);
    let code = CODES.iter().position(|code| *code == failure.code);
    out.u8(code.expect("every code is in the list") as u8);
    let plain: String = failure.words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = plain.len().min(WORDS_BYTES_MAX);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    out.bytes(&plain.as_bytes()[..end]);
}

pub(super) fn read_failure(from: &mut Reader<'_>) -> Result<Failure, FrameError> {
    let epoch = Epoch(from.u64("epoch")?);
    let value = from.u8("code")?;
    let max = CODES.len() as u64 - 1;
    let code = CODES.get(usize::from(value)).copied();
    let code = code.ok_or(FrameError::Value { what: "code", value: u64::from(value), max })?;
    Ok(Failure { epoch, code, words: from.text("words", WORDS_BYTES_MAX)? })
}
