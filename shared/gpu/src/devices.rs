//! The devices that are there, and the one that a choice means.

use std::cmp::Reverse;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::Offload;
use baton_kernels_cpu::Format;
use baton_kernels_gpu::{Device, Facts, Interface};

use baton_terminal::{chain, size};

use crate::choice::GpuChoice;
use crate::measure::{ProductRates, measure, measure_cpu};
use crate::sets;
use crate::size::VramLimit;

/// The format of the weights by which a GPU is compared with the CPU.
const COMPARED: Format = Format::Q8_0;
/// About how long a GPU is measured for that, beside the compiling of kernels; the CPU takes half as long.
const COMPARE_TIME: Duration = Duration::from_millis(500);
/// How many times as fast as the CPU it must be, so that chance decides seldom.
const FASTER: f64 = 1.2;

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
    #[error("open the GPU {}", label(facts))]
    Device {
        /// What it is.
        facts: Box<Facts>,
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
    /// What the user should know: GPUs that cannot be used, options without effect.
    pub notices: Vec<String>,
    /// Whether the user named the device: then the program computes on it or fails.
    pub is_named: bool,
    /// How all layers are computed although they may not fit into its memory; `None` if only those that fit
    /// are.
    pub offload: Option<Offload>,
    /// The devices that are better and cannot be opened.
    pub refused: Vec<RefusedGpu>,
    /// The devices that were not tried, the best first.
    pub others: Vec<Facts>,
}

/// A device that is there and cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGpu {
    /// What it is.
    pub facts: Facts,
    /// Why it cannot be opened.
    pub reason: String,
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
fn best_first(devices: &mut [Facts]) {
    devices.sort_by_key(|facts| {
        let by_memory = Reverse(facts.memory_bytes.unwrap_or(0));
        let without_cuda = facts.interface != Interface::Cuda;
        (facts.is_software, facts.shares_memory, without_cuda, by_memory, facts.interface, facts.index)
    });
}

/// Returns a device's name, its place and its memory, for people.
pub fn label(facts: &Facts) -> String {
    let memory = match facts.memory_bytes {
        Some(bytes) if facts.shares_memory => format!(", {} shared with the CPU", size(bytes)),
        Some(bytes) => format!(", {}", size(bytes)),
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
/// GPU that cannot be opened is passed over with a notice. So is one that shares the CPU's memory, unless it
/// is faster than the CPU: that is measured, in about a second. `limit` bounds the memory that the program
/// uses.
///
/// # Errors
/// [`OpenError`] if a named device is not there or cannot be opened.
pub fn open(choice: GpuChoice, limit: Option<VramLimit>) -> Result<OpenedGpu, OpenError> {
    let found = if choice == GpuChoice::Off { Vec::new() } else { list() };
    let open = |facts: &Facts| sets::open(facts, limit.map(|limit| limit.0));
    open_of(choice, limit, found, (&open, &slower_than_the_cpu))
}

/// Opens a device.
type Open<'a> = &'a dyn Fn(&Facts) -> Result<Arc<dyn Device>, Reason>;
/// Returns why a device that shares the CPU's memory is not worth using, if it is not.
type Slower<'a> = &'a dyn Fn(&dyn Device) -> Option<String>;

/// Compares a device with the CPU by products of weights with one activation row, as for each token of an
/// answer, and with many, as for a prompt. It must be faster in both.
fn slower_than_the_cpu(device: &dyn Device) -> Option<String> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let measured = measure(device, &[COMPARED], COMPARE_TIME).and_then(|gpu| {
        let cpu = measure_cpu(threads, COMPARED, COMPARE_TIME / 2)?;
        Ok(gpu.products.get(COMPARED.name()).and_then(|gpu| slower(gpu, &cpu)))
    });
    measured.unwrap_or_else(|err| Some(format!("it cannot be measured: {}", chain(&err))))
}

/// Says in what a GPU is not clearly faster than the CPU.
fn slower(gpu: &ProductRates, cpu: &ProductRates) -> Option<String> {
    let rates = |rates: &ProductRates| [rates.vector_flops / 1e9, rates.matrix_flops / 1e9];
    let is_slower = rates(gpu).iter().zip(rates(cpu)).any(|(gpu, cpu)| *gpu < FASTER * cpu);
    let ([gpu_one, gpu_many], [cpu_one, cpu_many]) = (rates(gpu), rates(cpu));
    is_slower.then(|| {
        format!(
            "it is not faster than the CPU: {gpu_one:.0} and {gpu_many:.0} GFLOPS for one token and for \
             many, the CPU {cpu_one:.0} and {cpu_many:.0}"
        )
    })
}

/// As [`open`], among these devices, the best first.
fn open_of(
    choice: GpuChoice,
    limit: Option<VramLimit>,
    mut found: Vec<Facts>,
    (open, slower): (Open<'_>, Slower<'_>),
) -> Result<OpenedGpu, OpenError> {
    let mut opened = match choice {
        GpuChoice::Off => OpenedGpu::default(),
        GpuChoice::Auto => first_of(found, (open, slower)),
        GpuChoice::Named { interface, .. } if !sets::has(interface) => {
            return Err(OpenError::NotBuilt(interface));
        }
        GpuChoice::Named { interface, index } => {
            let is_meant = |facts: &Facts| {
                facts.interface == interface && index.is_none_or(|index| facts.index == index)
            };
            let Some(at) = found.iter().position(is_meant) else {
                return Err(OpenError::Missing { wanted: choice, found });
            };
            let facts = found.remove(at);
            match open(&facts) {
                Ok(device) => {
                    let device = Some(device);
                    OpenedGpu { device, is_named: true, others: found, ..OpenedGpu::default() }
                }
                Err(err) => return Err(OpenError::Device { facts: Box::new(facts), err }),
            }
        }
    };
    opened.notices.extend(limit_notice(opened.device.as_deref(), limit));
    Ok(opened)
}

/// Opens the first GPU that can be opened and is worth using.
fn first_of(found: Vec<Facts>, (open, slower): (Open<'_>, Slower<'_>)) -> OpenedGpu {
    let mut opened = OpenedGpu::default();
    for facts in found {
        if facts.is_software || opened.device.is_some() {
            opened.others.push(facts);
            continue;
        }
        match open(&facts) {
            Ok(device) => {
                let why = if facts.shares_memory { slower(&*device) } else { None };
                let Some(why) = why else {
                    opened.device = Some(device);
                    continue;
                };
                let label = label(&facts);
                opened
                    .notices
                    .push(format!("{label} is not used, because {why}; to use it, name it (--gpu)"));
                opened.others.push(facts);
            }
            Err(err) => opened.refused.push(RefusedGpu { facts, reason: chain(&*err) }),
        }
    }
    if !opened.refused.is_empty() {
        let instead = match &opened.device {
            Some(device) => label(device.facts()),
            None => "the CPU".to_owned(),
        };
        let said = |gpu: &RefusedGpu| format!("{}: {}", label(&gpu.facts), gpu.reason);
        let refused = opened.refused.iter().map(said).collect::<Vec<_>>().join("; ");
        opened.notices.push(format!("{instead} computes, because a GPU cannot be opened: {refused}"));
    }
    opened
}

/// Returns what the user should know of the memory limit: it has no effect, or there should be one.
fn limit_notice(device: Option<&dyn Device>, limit: Option<VramLimit>) -> Option<String> {
    match (device, limit) {
        (None, Some(_)) => Some("--vram has no effect, because no GPU computes".to_owned()),
        (Some(device), None) if device.facts().memory_bytes.is_none() => {
            let (label, most) = (label(device.facts()), size(device.free_bytes()?));
            Some(format!("{label} does not say how much memory it has: {most} are used, set --vram for more"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_kernels_gpu::cases::HostDevice;

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
        assert_eq!(label(&facts(Cuda, 0, 12)), "cuda-0 (cuda:0, 12.00 GB)");
        assert_eq!(label(&facts(Vulkan, 1, 0)), "vulkan-1 (vulkan:1)");
        assert_eq!(
            label(&software(integrated(facts(Vulkan, 0, 8)))),
            "vulkan-0 (vulkan:0, 8.00 GB shared with the CPU, a program on the CPU)"
        );
    }

    /// As [`super::open_of`], with GPUs that are faster than the CPU.
    fn open_of(
        choice: GpuChoice,
        limit: Option<VramLimit>,
        found: Vec<Facts>,
        open: impl Fn(&Facts) -> Result<Arc<dyn Device>, Reason>,
    ) -> Result<OpenedGpu, OpenError> {
        super::open_of(choice, limit, found, (&open, &|_| None))
    }

    fn refuse(_: &Facts) -> Result<Arc<dyn Device>, Reason> {
        Err("the driver is too old".into())
    }

    fn never(facts: &Facts) -> Result<Arc<dyn Device>, Reason> {
        panic!("{} is opened", facts.name)
    }

    #[test]
    fn off_opens_nothing_and_auto_no_program_on_the_cpu() {
        let opened = open_of(GpuChoice::Off, None, vec![facts(Vulkan, 0, 8)], never).unwrap();
        assert!(opened.device.is_none() && opened.notices.is_empty());
        let opened = open_of(GpuChoice::Auto, None, vec![software(facts(Vulkan, 0, 8))], never).unwrap();
        assert!(opened.device.is_none() && opened.notices.is_empty());
        let opened = open(GpuChoice::Off, None).unwrap();
        assert!(opened.device.is_none() && opened.notices.is_empty());
    }

    #[test]
    fn auto_says_why_a_gpu_is_not_used() {
        let found = vec![facts(Vulkan, 0, 8), integrated(facts(Vulkan, 1, 0))];
        let opened = open_of(GpuChoice::Auto, None, found, refuse).unwrap();
        assert!(opened.device.is_none() && opened.others.is_empty());
        assert_eq!(
            opened.notices,
            ["the CPU computes, because a GPU cannot be opened: vulkan-0 (vulkan:0, 8.00 GB): the driver \
             is too old; vulkan-1 (vulkan:1): the driver is too old"]
        );
        let places: Vec<_> = opened.refused.iter().map(|gpu| (gpu.facts.index, &*gpu.reason)).collect();
        assert_eq!(places, [(0, "the driver is too old"), (1, "the driver is too old")]);
    }

    fn of_budget(budget: Option<u64>) -> impl Fn(&Facts) -> Result<Arc<dyn Device>, Reason> {
        move |_| Ok(Arc::new(HostDevice::new(budget)))
    }

    #[test]
    fn auto_takes_the_first_that_opens_and_lists_the_others() {
        let found = vec![facts(Vulkan, 0, 8), facts(Dx12, 0, 8), software(facts(Vulkan, 1, 0))];
        let second = |facts: &Facts| {
            if facts.interface == Vulkan { refuse(facts) } else { of_budget(Some(1 << 30))(facts) }
        };
        let opened = open_of(GpuChoice::Auto, None, found, second).unwrap();
        assert!(opened.device.is_some());
        assert_eq!(opened.refused.iter().map(|gpu| &*gpu.facts.name).collect::<Vec<_>>(), ["vulkan-0"]);
        assert_eq!(opened.others.iter().map(|facts| &*facts.name).collect::<Vec<_>>(), ["vulkan-1"]);
        assert_eq!(opened.notices.len(), 1);
    }

    #[test]
    fn auto_takes_a_gpu_that_shares_memory_only_if_it_is_faster() {
        let product = |vector_flops, matrix_flops| ProductRates {
            vector_bytes_per_s: vector_flops / 2.0,
            vector_flops,
            matrix_flops,
        };
        let cpu = product(4e10, 4e11);
        assert_eq!(slower(&product(5e10, 2e12), &cpu), None);
        let said = "it is not faster than the CPU: 20 and 2000 GFLOPS for one token and for many, the CPU \
                    40 and 400";
        assert_eq!(slower(&product(2e10, 2e12), &cpu).unwrap(), said);
        assert!(slower(&product(5e10, 4.1e11), &cpu).is_some() && slower(&cpu, &cpu).is_some());

        let found = || vec![integrated(facts(Vulkan, 0, 8)), software(facts(Vulkan, 1, 8))];
        let open = of_budget(Some(1 << 30));
        let slow = |_: &dyn Device| Some("it is slow".to_owned());
        let with = |choice: &str, slower: Slower<'_>| {
            super::open_of(choice.parse().unwrap(), None, found(), (&open, slower)).unwrap()
        };
        let opened = with("auto", &slow);
        assert!(opened.device.is_none() && opened.refused.is_empty());
        assert_eq!(opened.others, found());
        assert_eq!(
            opened.notices,
            ["vulkan-0 (vulkan:0, 8.00 GB shared with the CPU) is not used, because it is slow; to use it, \
              name it (--gpu)"]
        );
        assert!(with("auto", &|_| None).device.is_some());
        // What has memory of its own is not measured, nor is what the user names.
        let measured = |device: &dyn Device| -> Option<String> { panic!("{device:?} is measured") };
        let own = super::open_of(GpuChoice::Auto, None, vec![facts(Vulkan, 0, 8)], (&open, &measured));
        assert!(own.unwrap().device.is_some());
        if sets::has(Vulkan) {
            let opened = with("vulkan:0", &measured);
            assert!(opened.device.is_some() && opened.is_named && opened.notices.is_empty());
        }
    }

    #[test]
    fn options_without_effect_and_memory_that_is_not_known_are_told() {
        let limit = Some(VramLimit(6_000_000_000));
        let vram = "--vram has no effect, because no GPU computes";
        let offload = "--gpu-offload has no effect, because no GPU computes";
        for choice in [GpuChoice::Off, GpuChoice::Auto] {
            let open = || open_of(choice, limit, Vec::new(), never).unwrap();
            assert_eq!(open().offloading(None).notices, [vram]);
            assert_eq!(open().offloading(Some(Offload::default())).notices, [vram, offload]);
        }
        let open = |budget, limit| {
            let found = vec![facts(Vulkan, 0, 8)];
            open_of(GpuChoice::Auto, limit, found, of_budget(budget))
                .unwrap()
                .offloading(Some(Offload::default()))
                .notices
        };
        assert!(open(Some(1 << 30), None).is_empty() && open(Some(1 << 30), limit).is_empty());
        let unknown = |_: &Facts| -> Result<Arc<dyn Device>, Reason> {
            Ok(Arc::new(HostDevice::new(Some(2_000_000_000)).of_unknown_memory()))
        };
        let said = open_of(GpuChoice::Auto, None, vec![facts(Metal, 0, 0)], unknown).unwrap().notices;
        assert_eq!(
            said,
            ["host memory (vulkan:0, a program on the CPU) does not say how much memory it has: \
              2.00 GB are used, set --vram for more"]
        );
    }

    #[test]
    #[cfg(feature = "wgpu")]
    fn a_named_device_must_be_there_and_open() {
        let found = || vec![facts(Vulkan, 0, 8), software(facts(Vulkan, 1, 0))];
        let named = |text: &str| text.parse::<GpuChoice>().unwrap();
        let said = open_of(named("vulkan:2"), None, found(), never).unwrap_err().to_string();
        assert_eq!(
            said,
            "there is no GPU `vulkan:2`; found: vulkan-0 (vulkan:0, 8.00 GB); \
             vulkan-1 (vulkan:1, a program on the CPU)"
        );
        let said = open_of(named("metal"), None, Vec::new(), never).unwrap_err().to_string();
        assert_eq!(said, "there is no GPU `metal`; none was found");
        for (name, want) in [("vulkan", "vulkan:0"), ("vulkan:1", "vulkan:1")] {
            let err = open_of(named(name), None, found(), refuse).unwrap_err();
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
