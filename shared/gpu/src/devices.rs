//! The devices that are there, and the one that a choice means.

use std::cmp::Reverse;
use std::error::Error;
use std::sync::Arc;

use baton_engine::Offload;
use baton_kernels_gpu::{Device, Facts, Interface};

use crate::choice::GpuChoice;
use crate::sets;
use crate::size::{VramLimit, in_words};

/// Why a set could not open a device.
pub(crate) type Reason = Box<dyn Error + Send + Sync>;

/// Why a named device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there.
    #[error("there is no GPU `{wanted}`; {}", those_of(found))]
    Missing {
        /// The user's choice.
        wanted: GpuChoice,
        /// The devices that are there, the best first.
        found: Vec<Facts>,
    },
    /// This program was built without the interface.
    #[error("this program was built without {0}")]
    NotBuilt(Interface),
    /// It is there and cannot be opened.
    #[error("open the GPU {label}")]
    Device {
        /// Its name and place.
        label: String,
        /// The cause.
        #[source]
        err: Reason,
    },
}

/// What a choice has come to.
#[derive(Debug, Clone, Default)]
pub struct OpenedGpu {
    /// The device; `None` if the program computes without a GPU.
    pub device: Option<Arc<dyn Device>>,
    /// What the user should know: a GPU that is there cannot be used.
    pub notice: Option<String>,
    /// Whether the user named the device: then the program computes on it or fails.
    pub is_named: bool,
    /// How all layers are computed although they may not fit into its memory; `None` if only those that fit
    /// are.
    pub offload: Option<Offload>,
}

/// Returns every device that this build can reach, the best first, programs on the CPU last. A GPU that can
/// be reached in several ways is there several times.
pub fn list() -> Vec<Facts> {
    let mut all = sets::devices();
    best_first(&mut all);
    all
}

/// Puts devices in the order in which [`GpuChoice::Auto`] tries them.
///
/// GPUs with memory of their own come first, and among them NVIDIA's by its own driver, then those with more
/// memory. Programs on the CPU come last.
pub fn best_first(devices: &mut [Facts]) {
    devices.sort_by_key(|facts| {
        let by_memory = Reverse(facts.memory_bytes.unwrap_or(0));
        let without_cuda = facts.interface != Interface::Cuda;
        (facts.is_software, facts.shares_memory, without_cuda, by_memory, facts.interface, facts.index)
    });
}

/// Returns a device's name, its place and its memory, for people.
pub fn label(facts: &Facts) -> String {
    let memory = match facts.memory_bytes {
        Some(bytes) if facts.shares_memory => format!(", {} shared with the CPU", in_words(bytes)),
        Some(bytes) => format!(", {}", in_words(bytes)),
        None => String::new(),
    };
    let software = if facts.is_software { ", a program on the CPU" } else { "" };
    format!("{} ({}:{}{memory}{software})", facts.name, facts.interface, facts.index)
}

fn those_of(found: &[Facts]) -> String {
    if found.is_empty() {
        return "none was found".to_owned();
    }
    format!("found: {}", found.iter().map(label).collect::<Vec<_>>().join("; "))
}

/// Opens the GPU that is chosen. With [`GpuChoice::Auto`] it is the first of [`list`] that can be opened; a
/// GPU that cannot be opened is passed over with a notice. `limit` bounds the memory that the program uses.
///
/// # Errors
/// [`OpenError`] if a named device is not there or cannot be opened.
pub fn open(choice: GpuChoice, limit: Option<VramLimit>) -> Result<OpenedGpu, OpenError> {
    let found = if choice == GpuChoice::Off { Vec::new() } else { list() };
    open_of(choice, found, |facts| sets::open(facts, limit.map(|limit| limit.0)))
}

/// As [`open`], among these devices, the best first.
fn open_of(
    choice: GpuChoice,
    found: Vec<Facts>,
    open: impl Fn(&Facts) -> Result<Arc<dyn Device>, Reason>,
) -> Result<OpenedGpu, OpenError> {
    let (interface, index) = match choice {
        GpuChoice::Off => return Ok(OpenedGpu::default()),
        GpuChoice::Auto => return Ok(first_of(&found, open)),
        GpuChoice::Named { interface, index } => (interface, index),
    };
    if !sets::has(interface) {
        return Err(OpenError::NotBuilt(interface));
    }
    let is_meant =
        |facts: &&Facts| facts.interface == interface && index.is_none_or(|index| facts.index == index);
    let Some(facts) = found.iter().find(is_meant) else {
        return Err(OpenError::Missing { wanted: choice, found });
    };
    let device = open(facts).map_err(|err| OpenError::Device { label: label(facts), err })?;
    Ok(OpenedGpu { device: Some(device), notice: None, is_named: true, offload: None })
}

/// Opens the first GPU that can be opened.
fn first_of(found: &[Facts], open: impl Fn(&Facts) -> Result<Arc<dyn Device>, Reason>) -> OpenedGpu {
    let mut refused = Vec::new();
    let mut device = None;
    for facts in found.iter().filter(|facts| !facts.is_software) {
        match open(facts) {
            Ok(opened) => {
                device = Some(opened);
                break;
            }
            Err(err) => refused.push(format!("{}: {}", label(facts), chain(&*err))),
        }
    }
    let notice = (!refused.is_empty()).then(|| {
        let instead = match &device {
            Some(device) => label(device.facts()),
            None => "the CPU".to_owned(),
        };
        format!("{instead} computes, because a GPU cannot be opened: {}", refused.join("; "))
    });
    OpenedGpu { device, notice, is_named: false, offload: None }
}

/// Returns an error with its causes.
fn chain(err: &dyn Error) -> String {
    let mut words = err.to_string();
    let mut cause = err.source();
    while let Some(next) = cause {
        words = format!("{words}: {next}");
        cause = next.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    use Interface::{Cuda, Dx12, Metal, Vulkan};

    fn facts(interface: Interface, index: usize, gigabytes: u64) -> Facts {
        Facts {
            name: format!("{interface}-{index}"),
            interface,
            index,
            is_software: false,
            shares_memory: false,
            memory_bytes: (gigabytes > 0).then_some(gigabytes * 1_000_000_000),
            binding_bytes: 128 << 20,
        }
    }

    fn integrated(facts: Facts) -> Facts {
        Facts { shares_memory: true, ..facts }
    }

    fn software(facts: Facts) -> Facts {
        Facts { is_software: true, ..facts }
    }

    #[track_caller]
    fn order(mut devices: Vec<Facts>, want: &[&str]) {
        best_first(&mut devices);
        let have: Vec<&str> = devices.iter().map(|facts| facts.name.as_str()).collect();
        assert_eq!(have, want);
    }

    #[test]
    fn the_best_device_comes_first() {
        // A GPU by two interfaces, with more memory than another.
        order(vec![facts(Vulkan, 0, 12), facts(Cuda, 0, 12)], &["cuda-0", "vulkan-0"]);
        order(
            vec![facts(Vulkan, 0, 24), facts(Cuda, 0, 8), facts(Cuda, 1, 12)],
            &["cuda-1", "cuda-0", "vulkan-0"],
        );
        // A laptop: integrated, discrete, and a program.
        order(
            vec![
                integrated(facts(Vulkan, 0, 32)),
                software(facts(Vulkan, 1, 64)),
                facts(Vulkan, 2, 6),
                facts(Dx12, 0, 6),
            ],
            &["vulkan-2", "dx12-0", "vulkan-0", "vulkan-1"],
        );
        // Memory that is not known counts as none.
        order(vec![facts(Vulkan, 0, 0), facts(Vulkan, 1, 4)], &["vulkan-1", "vulkan-0"]);
        order(vec![integrated(facts(Metal, 0, 16)), integrated(facts(Cuda, 0, 8))], &["cuda-0", "metal-0"]);
    }

    #[test]
    fn a_label_says_what_and_where() {
        assert_eq!(label(&facts(Cuda, 0, 12)), "cuda-0 (cuda:0, 12.0 GB)");
        assert_eq!(label(&facts(Vulkan, 1, 0)), "vulkan-1 (vulkan:1)");
        assert_eq!(
            label(&software(integrated(facts(Vulkan, 0, 8)))),
            "vulkan-0 (vulkan:0, 8.0 GB shared with the CPU, a program on the CPU)"
        );
    }

    fn refuse(_: &Facts) -> Result<Arc<dyn Device>, Reason> {
        Err("the driver is too old".into())
    }

    fn never(facts: &Facts) -> Result<Arc<dyn Device>, Reason> {
        panic!("{} is opened", facts.name)
    }

    #[test]
    fn off_opens_nothing_and_auto_no_program_on_the_cpu() {
        let opened = open_of(GpuChoice::Off, vec![facts(Vulkan, 0, 8)], never).unwrap();
        assert!(opened.device.is_none() && opened.notice.is_none());
        let opened = open_of(GpuChoice::Auto, vec![software(facts(Vulkan, 0, 8))], never).unwrap();
        assert!(opened.device.is_none() && opened.notice.is_none());
        let opened = open(GpuChoice::Off, None).unwrap();
        assert!(opened.device.is_none() && opened.notice.is_none());
    }

    #[test]
    fn auto_says_why_a_gpu_is_not_used() {
        let found = vec![facts(Vulkan, 0, 8), integrated(facts(Vulkan, 1, 0))];
        let opened = open_of(GpuChoice::Auto, found, refuse).unwrap();
        assert!(opened.device.is_none());
        assert_eq!(
            opened.notice.as_deref(),
            Some(
                "the CPU computes, because a GPU cannot be opened: vulkan-0 (vulkan:0, 8.0 GB): the driver \
                 is too old; vulkan-1 (vulkan:1): the driver is too old"
            )
        );
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn a_named_device_must_be_there_and_open() {
        let found = || vec![facts(Vulkan, 0, 8), software(facts(Vulkan, 1, 0))];
        let named = |text: &str| text.parse::<GpuChoice>().unwrap();
        let said = open_of(named("vulkan:2"), found(), never).unwrap_err().to_string();
        assert_eq!(
            said,
            "there is no GPU `vulkan:2`; found: vulkan-0 (vulkan:0, 8.0 GB); \
             vulkan-1 (vulkan:1, a program on the CPU)"
        );
        let said = open_of(named("metal"), Vec::new(), never).unwrap_err().to_string();
        assert_eq!(said, "there is no GPU `metal`; none was found");
        for (name, want) in [("vulkan", "vulkan:0"), ("vulkan:1", "vulkan:1")] {
            let err = open_of(named(name), found(), refuse).unwrap_err();
            assert!(err.to_string().contains(want), "{err}");
            assert_eq!(chain(err.source().unwrap()), "the driver is too old");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn an_interface_that_is_not_built_is_named() {
        let said = open("cuda:0".parse().unwrap(), None).unwrap_err().to_string();
        assert_eq!(said, "this program was built without cuda");
    }

    #[test]
    fn what_is_listed_is_in_order() {
        let found = list();
        let mut again = found.clone();
        best_first(&mut again);
        assert_eq!(found, again);
    }
}
