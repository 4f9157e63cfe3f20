//! The head's side of a ring on the command line: finds the devices, plans their work, and forms the ring.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use baton_engine::engine::KvFormat;
use baton_engine::{EngineOptions, GpuLayers, GpuUse, Model, ModelConfig};
use baton_gpu::OpenedGpu;
use baton_plan::{Device, Gpu, Plan, SearchOptions, Workload};
use clap::Args;

use super::PORT;
use crate::cli::{gpu, values};
use crate::machine::ThisMachine;
use crate::machine::gpu::buffer_bytes;
use crate::machine::profile::{ProfileOptions, kept_or_measured};
use crate::machine::residency::text_bytes;
use crate::machine::shape::shape_of;
use crate::settings::Settings;
use crate::settings::ring_folder;
use baton_ring::core::head::PlanFor;
use baton_ring::core::{DeviceId, Node};
use baton_ring::home::discovery::{Discovery, Interfaces};
use baton_ring::home::identity::{Identity, PublicKey};
use baton_ring::home::peers::{Membership, Peer, Peers, Role};
use baton_ring::home::rejoin::{LOOK, PairedDevices, spawn_rejoin};
use baton_ring::home::state::{STATE_DIR_ENV, StateFolder};
use baton_ring::home::ways;
use baton_ring::host::{Machine as _, Names, RingHandle, RingHead, RingOptions};
use baton_ring::planning::{CurrentPlan, PlanRequest, Planning};
use baton_ring::wire::channel::Channel;
use baton_ring::wire::frame::{Activations, Hello};
use baton_ring::wire::tcp::HomeNetwork;

/// Longest time for a device to prove its key at one of its addresses; a busy device takes a second or two.
const ANSWER: Duration = Duration::from_secs(4);
/// Options of the device that heads a ring.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct HeadArgs {
    /// Folder of the ring's state [default: `ring` in the settings' folder]
    #[arg(long, env = STATE_DIR_ENV, value_name = "DIR", hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_state: Option<PathBuf>,
    /// Address on which this device listens for the ring's last device; port 0 takes a free one
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], PORT)), value_name = "HOST:PORT", value_parser = values::address, hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_listen: SocketAddr,
    /// Address at which the other devices reach this one, if it is not the one it listens on (a forwarded
    /// port)
    #[arg(long, value_name = "HOST:PORT", value_parser = values::address, hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_address: Option<SocketAddr>,
    /// Rounds per token [default: the best number]
    #[arg(long, allow_negative_numbers = true, value_name = "K", value_parser = values::whole::<u8>(1, 16), hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_rounds: Option<u8>,
    /// File with the plan to use while its devices are present: the object that `baton ring plan --json`
    /// prints as `plan`
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_plan: Option<PathBuf>,
    /// Look for returning devices only at their last addresses, not by multicast DNS
    #[arg(long, hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_no_mdns: bool,
    /// Time between heartbeats in milliseconds; a device that misses three is lost. Set more if devices are
    /// very busy
    #[arg(long, allow_negative_numbers = true, default_value_t = 300, value_name = "MS", value_parser = values::whole::<u32>(50, 60_000), hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_heartbeat: u32,
    /// Send hidden states as f16: half the bytes, but answers may differ from those of one device
    #[arg(long, hide_short_help = true, help_heading = crate::cli::heading::RING)]
    ring_f16: bool,
    /// Read weights that do not fit into memory only when they are needed, on all devices; this shows what
    /// reading ahead gains
    #[arg(long, hide_short_help = true, help_heading = crate::cli::heading::RING)]
    pub(in crate::cli) ring_no_read_ahead: bool,
}

/// A ring, and handles to it for other threads.
pub(in crate::cli) struct Formed {
    pub(in crate::cli) head: RingHead,
    pub(in crate::cli) handle: RingHandle,
    pub(in crate::cli) current_plan: CurrentPlan,
}

/// Returns the names that the devices have in this ring.
fn names(folder: StateFolder) -> Names {
    Names::new(move |key: &DeviceId| {
        Some(Peers::load(&folder).ok()?.by_key(&PublicKey(key.0))?.name.to_string())
    })
}

/// Fails if this device is not the head of a ring.
fn must_head(folder: &StateFolder) -> anyhow::Result<()> {
    match Membership::load(folder)? {
        Some(place) if place.role == Role::Head => Ok(()),
        Some(place) => {
            bail!("this device is a worker of ring {}; ask its head, or `baton ring leave`", place.ring)
        }
        None => bail!("this device heads no ring; begin one with `baton ring init`"),
    }
}

/// Forms the ring of this device and its peers; `said` gets messages about slow steps and missing devices.
pub(in crate::cli) fn form(
    model: &Arc<Model>,
    engine: EngineOptions,
    workload: Workload,
    args: &HeadArgs,
    machine: ThisMachine,
    settings: &Settings,
    said: &mut dyn FnMut(&str),
) -> anyhow::Result<Formed> {
    let folder = StateFolder::open(ring_folder(args.ring_state.clone()))?;
    must_head(&folder)?;
    let identity = Identity::open(&folder, None).context("open this device's identity")?;
    let name = identity.name().as_str().to_owned();
    let mut peers = Peers::load(&folder)?;
    // Rings of earlier versions, and a head that got another name since, may have a peer of its name.
    if peers.keep_apart(identity.name()) {
        peers.save(&folder)?;
    }
    let listener = TcpListener::bind(args.ring_listen)
        .with_context(|| format!("listen on {} for the ring (--ring-listen)", args.ring_listen))?;
    let file = model.path().context("the model is not in a file")?;
    let gpu = gpu::of_head(&machine.gpu, model, engine.kv_format).context("compute on the GPU")?;
    let machine = ThisMachine { gpu, ..machine };
    let mut own = own_device(&name, file, engine.threads, &machine.gpu, settings, said)?;
    machine.memory.bound(&mut own);
    own.buffer_bytes += text_bytes(model.config().vocab_len) as f64;
    let nodes = there(&peers, &identity, said);
    let wanted = PlanRequest {
        model: shape_of(file, engine.kv_format)?,
        workload,
        options: SearchOptions { rounds: args.ring_rounds.map(usize::from), ..SearchOptions::default() },
        given: args.ring_plan.as_deref().map(read_plan).transpose()?,
    };
    let planning = Planning::new(own, wanted);
    let (current_plan, revising, begun) = (planning.current_plan(), planning.clone(), Instant::now());
    let on_gpus = OnGpus::of(model.config(), engine.kv_format);
    let devices = move |workers: &[Hello]| -> Vec<_> {
        workers.iter().filter_map(|hello| on_gpus.device(hello)).collect()
    };
    let (drafting, pacing) = (planning.clone(), planning.clone());
    let drafter =
        move |of: &PlanFor| drafting.draft(&devices(&of.workers), &of.network).map_err(|err| err.to_string());
    let planner =
        move |of: &PlanFor| planning.plan(&devices(&of.workers), &of.network).map_err(|err| err.to_string());
    let paired = {
        let peers = peers.clone();
        Box::new(move |key: &_| peers.knows(key))
    };
    let met = peers.iter().flat_map(|peer| &peer.addresses).map(SocketAddr::ip);
    let network = HomeNetwork::open(identity.clone(), listener, paired).context("listen for the ring")?;
    let mut network = network.expecting(met);
    if let Some(address) = args.ring_address {
        network = network.reached_at(address);
    }
    let activations = if args.ring_f16 { Activations::F16 } else { Activations::F32 };
    let heartbeat = Duration::from_millis(args.ring_heartbeat.into());
    let reads_ahead = !args.ring_no_read_ahead;
    let engine = EngineOptions { gpu: machine.gpu(), ..engine };
    let options = RingOptions {
        activations,
        reads_ahead,
        ways: ways::load(&folder),
        ways_folder: Some(folder.clone()),
        names: names(folder.clone()),
        heartbeat,
        ..RingOptions::new(name, engine, Arc::new(machine))
    };
    let head = RingHead::connect(Arc::new(network), &nodes, Arc::clone(model), Box::new(planner), options)
        .context("form the ring")?
        .with_drafter(Box::new(drafter))
        .with_pacer(Box::new(move || pacing.predicted_times()))
        .with_reviser(Box::new(move |shown| revising.revise(begun.elapsed(), shown)));
    let handle = head.handle();
    let home = PairedDevices::new(folder, identity, discovery(args));
    spawn_rejoin(&handle, Box::new(home), LOOK).context("look out for devices")?;
    Ok(Formed { handle, current_plan, head })
}

/// What workers' GPUs can compute of the head's model.
#[derive(Debug, Clone, Copy)]
struct OnGpus {
    /// Whether they have kernels for the model and its keys and values.
    compute: bool,
    /// Bytes that a part of the model takes there beside weights, keys and values.
    buffer_bytes: f64,
}

impl OnGpus {
    fn of(config: &ModelConfig, format: KvFormat) -> Self {
        let compute = GpuUse::check(config, format, &GpuLayers::Fit).is_ok();
        // The head computes the logits.
        Self { compute, buffer_bytes: buffer_bytes(config.d_model, 0) }
    }

    /// Returns what a plan must know of a worker, by the name that it has in this ring. A worker does not
    /// know the model when it tells what it is.
    fn device(self, hello: &Hello) -> Option<Device> {
        let device = hello.device.clone()?;
        let gpu = device.gpu.filter(|_| self.compute);
        let gpu = gpu.map(|gpu| Gpu { buffer_bytes: self.buffer_bytes, ..gpu });
        Some(Device { name: hello.name.clone(), gpu, ..device })
    }
}

/// Opens multicast DNS, if it is wanted and works.
fn discovery(args: &HeadArgs) -> Option<Discovery> {
    if args.ring_no_mdns {
        return None;
    }
    let opened = Discovery::open(Interfaces::Real);
    opened.inspect_err(|err| tracing::warn!(%err, "devices are looked for at known addresses alone")).ok()
}

fn own_device(
    name: &str,
    file: &Path,
    threads: Option<NonZeroUsize>,
    gpu: &OpenedGpu,
    settings: &Settings,
    said: &mut dyn FnMut(&str),
) -> anyhow::Result<Device> {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let gpu = gpu.device.clone();
    let threads = threads.unwrap_or(all);
    let options = ProfileOptions { model: file.to_owned(), threads, name: name.to_owned(), gpu };
    let measured =
        kept_or_measured(&options, settings, false, &mut |what| said(&format!("measuring {what}")));
    Ok(measured.context("measure this device")?.0.device)
}

fn read_plan(path: &Path) -> anyhow::Result<Plan> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read the plan in `{}`", path.display()))
}

/// Returns the peers that answer, each with its first address that answers. An open port is not enough,
/// because another program may have it: the peer must prove its key.
fn there(peers: &Peers, identity: &Identity, said: &mut dyn FnMut(&str)) -> Vec<Node> {
    let mut nodes = Vec::new();
    for peer in peers.iter() {
        let answers = |address: &&SocketAddr| Channel::probe(**address, identity, &peer.key, ANSWER).is_ok();
        match peer.addresses.iter().find(answers) {
            Some(address) => nodes.push(Node { address: address.to_string(), device: DeviceId(peer.key.0) }),
            None => said(&absent(peer)),
        }
    }
    nodes
}

fn absent(peer: &Peer) -> String {
    let addresses: Vec<String> = peer.addresses.iter().map(SocketAddr::to_string).collect();
    format!(
        "`{}` does not answer at {}; the ring goes on without it (`baton ring doctor` says more)",
        peer.name,
        addresses.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_kernels_cpu::Format;
    use baton_kernels_gpu::cases::HostDevice;
    use baton_synthetic::SyntheticModel;

    use crate::machine::gpu::GpuProfile;
    use crate::machine::profile::general;

    fn opened(family: &'static str) -> Arc<Model> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, SyntheticModel::small(family, Format::Q8_0, 3).to_gguf().unwrap()).unwrap();
        Model::open(file.path()).unwrap()
    }

    /// A worker that has measured its GPU, and knows no model.
    fn hello() -> Hello {
        let folder = tempfile::tempdir().unwrap();
        let device = general("desk", NonZeroUsize::MIN, folder.path(), &mut |_| {}).unwrap();
        let gpu = GpuProfile::measured(&HostDevice::new(Some(1 << 30)), &[Format::Q8_0]).described(0.0);
        assert!(gpu.is_some());
        Hello { name: "desk-2".to_owned(), device: Some(Device { gpu, ..device }) }
    }

    #[test]
    fn workers_gpus_are_planned_with_if_they_can_compute_the_model_and_with_its_buffers() {
        let (hello, llama, recurrent) = (hello(), opened("llama"), opened("qwen35"));
        let seen = |model: &Model, format| OnGpus::of(model.config(), format).device(&hello).unwrap();
        let device = seen(&llama, KvFormat::F16);
        assert_eq!(device.name, "desk-2");
        let gpu = device.gpu.unwrap();
        assert_eq!(gpu.buffer_bytes, buffer_bytes(llama.config().d_model, 0));
        // A quarter of so little memory is left to the driver.
        assert!(gpu.buffer_bytes > 0.0 && gpu.memory_bytes == (3u64 << 28) as f64, "{gpu:?}");
        for (model, format) in [(&llama, KvFormat::Q8), (&recurrent, KvFormat::F16)] {
            assert_eq!(seen(model, format).gpu, None, "{format}");
        }
        let relays = Hello { device: None, ..hello.clone() };
        assert_eq!(OnGpus::of(llama.config(), KvFormat::F16).device(&relays), None);
    }
}
