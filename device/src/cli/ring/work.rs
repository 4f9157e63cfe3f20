//! The worker's side of a ring on the command line: serves the head and prints what it does.

use baton_terminal::outln;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use baton_gpu::OpenedGpu;
use baton_kernels_cpu::Format;
use baton_plan::Device;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::gpu::GpuArgs;
use crate::cli::values::one_or_more;
use crate::machine::ThisMachine;
use crate::machine::gpu::GpuProfile;
use crate::machine::profile::general;
use crate::machine::residency::MemoryFor;
use baton_ring::core::DeviceId;
use baton_ring::home::identity::{Identity, PublicKey};
use baton_ring::home::peers::Peers;
use baton_ring::home::state::StateFolder;
use baton_ring::host::{EventSink, WorkerEvent, WorkerOptions, serve};
use baton_ring::wire::link::Network;
use baton_ring::wire::tcp::HomeNetwork;

/// File in the ring's state folder with the device's measurements. Delete it if the device has changed.
const DEVICE_FILE: &str = "device.json";

/// File with those of its GPU.
const GPU_FILE: &str = "gpu.json";

/// Options of a device that computes for a head.
#[derive(Debug, Clone, Args)]
pub(super) struct WorkArgs {
    /// Complete model file on this device, so that no part of it is fetched (may be given several times)
    #[arg(long, value_name = "FILE")]
    model: Vec<PathBuf>,
    /// Compute nothing: the device is paired and connected, and plans leave it out
    #[arg(long)]
    relay: bool,
    /// Number of compute threads [default: all]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = one_or_more)]
    threads: Option<NonZeroUsize>,
    /// Memory for the weights of this device's layers: auto (what the system can give), all (map them), or a
    /// size (2GB). What does not fit is read from the disk for every token
    #[arg(long, env = "BATON_MEMORY", default_value = "auto", value_name = "SIZE")]
    memory: MemoryFor,
    #[command(flatten)]
    gpu: GpuArgs,
    /// Folder for parts of models [default: `models` in the ring's state]
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
}

/// Serves the head until `stop` is set.
pub(super) fn work(
    args: &WorkArgs,
    json: bool,
    folder: &StateFolder,
    identity: Identity,
    head: PublicKey,
    listener: TcpListener,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let name = identity.name().as_str().to_owned();
    let weights = args.weights.clone().unwrap_or_else(|| folder.path().join("models"));
    let gpu = if args.relay { OpenedGpu::default() } else { args.gpu.open()? };
    let mut device = if args.relay { None } else { Some(device(&name, args, &gpu, folder, json)?) };
    device.iter_mut().for_each(|device| args.memory.bound(device));
    let address = listener.local_addr().context("read the bound address")?;
    let peers = Peers::load(folder)?;
    let met = peers.by_key(&head).map_or_else(Vec::new, |head| head.addresses.clone());
    let network = HomeNetwork::open(identity, listener, Box::new(move |key| *key == head))
        .context("listen")?
        .expecting(met.iter().map(SocketAddr::ip));
    let network: Arc<dyn Network> = Arc::new(network);
    let options = WorkerOptions {
        device,
        files: args.model.clone(),
        threads: args.threads,
        ..WorkerOptions::new(name, weights, Arc::new(ThisMachine { memory: args.memory, gpu }))
    };
    if json {
        outln!("{}", json!({ "event": "waiting", "address": address }))?;
    } else {
        outln!("waiting for the head on {address} (Ctrl-C ends)")?;
    }
    let said: EventSink = Arc::new(move |event| say(&event, json));
    serve(&network, &options, &|key| key.0 == head.0, &said, stop).context("serve the head")
}

/// Returns this device's measurements, from now or from an earlier run; free memory is always measured now.
fn device(
    name: &str,
    args: &WorkArgs,
    gpu: &OpenedGpu,
    folder: &StateFolder,
    json: bool,
) -> anyhow::Result<Device> {
    let gpu = gpu.device.as_deref().map(|gpu| of_gpu(gpu, folder, json)).transpose()?;
    // The head knows the model, and so the GPU's buffers.
    let described = gpu.and_then(|gpu| gpu.described(0.0));
    Ok(Device { gpu: described, ..without_gpu(name, args, folder, json)? })
}

/// A GPU's measurements, and what they were made on.
#[derive(Debug, Serialize, Deserialize)]
struct KeptGpu {
    /// The program's version and build.
    build: String,
    /// Name, place and memory of the GPU.
    label: String,
    measured: GpuProfile,
}

/// Returns a GPU's measurements, from now or from an earlier run.
fn of_gpu(gpu: &dyn baton_gpu::Device, folder: &StateFolder, json: bool) -> anyhow::Result<GpuProfile> {
    let (path, build) = (folder.path().join(GPU_FILE), crate::machine::profile::build());
    let label = baton_gpu::label(gpu.facts());
    let kept = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<KeptGpu>(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.build == build && kept.label == label) {
        return Ok(GpuProfile { free_bytes: gpu.free_bytes(), ..kept.measured });
    }
    if !json {
        // The reader of the output may be gone; measuring goes on.
        let _unread = outln!("measuring the GPU {label}");
    }
    let measured = GpuProfile::measured(gpu, &Format::ALL);
    if let Some(problem) = &measured.problem {
        baton_terminal::errln!("note: no layers are planned for the GPU: {problem}");
        return Ok(measured);
    }
    let kept = KeptGpu { build, label, measured };
    let text = serde_json::to_vec_pretty(&kept).context("write what was measured")?;
    std::fs::write(&path, text).with_context(|| format!("write `{}`", path.display()))?;
    Ok(kept.measured)
}

fn without_gpu(name: &str, args: &WorkArgs, folder: &StateFolder, json: bool) -> anyhow::Result<Device> {
    let path = folder.path().join(DEVICE_FILE);
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let kept = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Device>(&bytes).ok());
    if let Some(mut device) = kept {
        name.clone_into(&mut device.name);
        crate::machine::profile::refresh_memory(&mut device).context("see how much memory is free")?;
        return Ok(device);
    }
    let measured = general(name, threads, folder.path(), &mut |what| {
        if !json {
            // The reader of the output may be gone; measuring goes on.
            let _unread = outln!("measuring {what}");
        }
    });
    let device = measured.context("measure this device")?;
    let text = serde_json::to_vec_pretty(&device).context("write what was measured")?;
    std::fs::write(&path, text).with_context(|| format!("write `{}`", path.display()))?;
    Ok(device)
}

/// Prints one line for each event.
fn say(event: &WorkerEvent, json: bool) {
    let fingerprint = |key: &DeviceId| PublicKey(key.0).fingerprint().to_string();
    let (object, text) = match event {
        WorkerEvent::Head { head } => {
            let head = fingerprint(head);
            (json!({ "event": "head", "head": head }), format!("head {head} is here"))
        }
        WorkerEvent::Checking { done, total } => (
            json!({ "event": "checking", "done": done, "total": total }),
            format!("checked: {:.1} of {:.1} MB", *done as f64 / 1e6, *total as f64 / 1e6),
        ),
        WorkerEvent::Fetching { done, total } => (
            json!({ "event": "fetching", "done": done, "total": total }),
            format!("weights: {:.1} of {:.1} MB", *done as f64 / 1e6, *total as f64 / 1e6),
        ),
        WorkerEvent::Ready { epoch, place, layers } => (
            json!({ "event": "ready", "epoch": epoch.0, "place": place, "layers": layers }),
            format!("epoch {epoch}: place {place}, {} layers", layers.len()),
        ),
        WorkerEvent::Failed { epoch, words } => (
            json!({ "event": "failed", "epoch": epoch.0, "words": words }),
            format!("epoch {epoch} is over: {words}"),
        ),
        WorkerEvent::HeadGone { head } => {
            let head = fingerprint(head);
            (json!({ "event": "head_gone", "head": head }), format!("head {head} is gone"))
        }
    };
    // The reader of the output may be gone; the work goes on.
    let _unread = if json { outln!("{object}") } else { outln!("{text}") };
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_gpu::GpuError;
    use baton_kernels_gpu::cases::HostDevice;

    #[test]
    fn a_gpu_s_rates_are_kept_for_one_gpu_and_build() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(Some(folder.path().to_owned())).unwrap();
        let path = state.path().join(GPU_FILE);
        let get = |device: &HostDevice| of_gpu(device, &state, true).unwrap();
        let lost = HostDevice::new(Some(1 << 30));
        lost.fail(GpuError::Lost("unplugged".to_owned()));
        assert!(get(&lost).problem.is_some() && !path.exists(), "a problem is not kept");
        let device = HostDevice::new(Some(1 << 30));
        assert!(get(&device).problem.is_none() && path.exists());
        // Rates that no measurement gives say where they come from.
        let planted = |change: fn(&mut KeptGpu)| {
            let mut kept: KeptGpu = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            kept.measured.rates.as_mut().unwrap().copies.launch_s = 1234.0;
            change(&mut kept);
            std::fs::write(&path, serde_json::to_vec(&kept).unwrap()).unwrap();
            get(&device).rates.unwrap().copies.launch_s == 1234.0
        };
        assert!(planted(|_| ()));
        assert!(!planted(|kept| kept.build.push('x')), "of another build");
        assert!(!planted(|kept| kept.label.push('x')), "of another GPU");
    }
}
