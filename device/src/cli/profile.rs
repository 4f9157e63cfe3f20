//! `baton profile`: measures what this device can do with a model, for `baton ring plan`.

use baton_terminal::{errln, out, outln};
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::gpu::{self, GpuArgs};
use super::values::one_or_more;
use crate::machine::gpu::GpuProfile;
use crate::machine::profile::{Origin, Profile, ProfileOptions, kept_or_measured};
use crate::settings::{CONFIG_DIR_ENV, Settings};

#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// GGUF model to measure: its shapes and formats, on its disk
    #[arg(long, env = "BATON_MODEL", value_name = "FILE")]
    model: PathBuf,
    /// Number of compute threads [default: all]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = one_or_more)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    gpu: GpuArgs,
    /// Name of this device
    #[arg(long, default_value = "this device", value_name = "NAME")]
    name: String,
    /// Measure again, even if a stored profile is still valid
    #[arg(long)]
    again: bool,
    /// Folder for stored profiles [default: the platform's]
    #[arg(long, env = CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Print one JSON object; its `device` is an entry of the description that `baton ring plan` reads
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ProfileArgs) -> anyhow::Result<()> {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let gpu = args.gpu.open()?.device;
    let (model, threads, name) = (args.model, args.threads.unwrap_or(all), args.name);
    let options = ProfileOptions { model, threads, name, gpu };
    let loud = std::io::stderr().is_terminal();
    let (settings, again) = (Settings::open(args.config_dir), args.again);
    let work = tokio::task::spawn_blocking(move || {
        kept_or_measured(&options, &settings, again, &mut |what| {
            if loud {
                errln!("measuring {what}");
            }
        })
    });
    let (measured, origin) = work.await.context("measure this device")??;
    let gpus = gpu::with_others(measured.gpu.clone());
    if args.json {
        let answer = Answer { profile: &measured, origin: &origin, gpus: &gpus };
        outln!("{}", serde_json::to_string(&answer).context("write the profile")?)?;
    } else {
        out!("{}{}{}", text(&measured), gpu_text(&gpus), said(&origin))?;
    }
    Ok(())
}

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    origin: &'a Origin,
    /// All GPUs, the measured one first.
    gpus: &'a [GpuProfile],
}

fn said(origin: &Origin) -> String {
    match origin {
        Origin::Kept => {
            "Kept from an earlier run, memory as it is now; measure again with --again.\n".to_owned()
        }
        Origin::New | Origin::Asked => String::new(),
        Origin::Drifted { figure, then, now } => {
            format!("Measured again: {figure} was {:.1} G/s, now {:.1} G/s.\n", then / 1e9, now / 1e9)
        }
    }
}

fn text(profile: &Profile) -> String {
    let Profile { device, model, memory, direct_reads, gpu: _ } = profile;
    let gigabytes = |bytes: f64| bytes / 1e9;
    let mut out = format!(
        "{} for {} ({} layers of {:.1} MB)\n",
        device.name,
        model.name,
        model.layers,
        model.layer_bytes / 1e6
    );
    for (format, rate) in &device.cpu.flops {
        out += &format!(
            "  products in {format:<6} {:>9.1} GFLOP/s (one vector, weights in the caches)\n",
            rate / 1e9
        );
    }
    out += &format!("  weights from memory {:>8.1} GB/s\n", gigabytes(device.cpu.read_bytes_per_s));
    out += &format!("  KV append           {:>8.2} us a token and layer\n", device.cpu.kv_copy_s * 1e6);
    out += &format!(
        "  memory              {:>8.2} GB (limited by: {})\n",
        gigabytes(device.memory_bytes),
        memory.bound_by
    );
    if device.swap_bytes > 0.0 {
        out += &format!("  can be swapped out  {:>8.2} GB\n", gigabytes(device.swap_bytes));
    }
    let cached = if *direct_reads {
        ""
    } else {
        " (may come from the page cache: this file system has no direct reads)"
    };
    out += &format!(
        "  disk, in order      {:>8.2} GB/s{cached}\n",
        gigabytes(device.disk.sequential_bytes_per_s)
    );
    out += &format!("  disk, random reads  {:>8.2} GB/s\n", gigabytes(device.disk.random_bytes_per_s));
    out
}

fn gpu_text(gpus: &[GpuProfile]) -> String {
    gpus.iter().map(|found| format!("  GPU {}", gpu::lines(found))).collect()
}
