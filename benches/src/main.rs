//! `baton-bench`: the measurements behind the project's figures. Each is a subcommand that runs from a fresh
//! checkout. It prints tables and, as its last line, one JSON object; it exits with 1 if a check fails.
//!
//! There is one module per subcommand, with its own `Args` (options) and `run` (work). The programs of the
//! project use nothing from here.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod adapters;
mod agent;
mod cgroup;
mod clock;
mod cloud;
mod copied;
mod demo;
mod engine;
mod evidence;
mod gpu;
mod handoff;
mod host;
mod hostile;
mod lossless;
mod make_model;
mod mask;
mod offload;
mod optimizer;
mod pacing;
mod parity;
mod planner;
mod prefix;
mod privacy;
mod quality;
mod random;
mod refiner;
mod report;
mod residency;
mod ring;
mod segmenter;
mod sim;
mod upstream;

#[derive(Debug, Parser)]
#[command(name = "baton-bench", version, about = "Measures what the project states figures for")]
struct Cli {
    /// Print only the JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// LoRA adapters: their cost in a batch, the time to load one, and equality with merged weights
    Adapters(adapters::Args),
    /// Agent: readiness, memory when idle, cost of its API, and agents' transcripts with and without kept
    /// prefixes
    Agent(agent::Args),
    /// Cloud service: how long requests hold a slot, and requests per second if all slots are in use
    Cloud(cloud::Args),
    /// Demo: how often its answers are right, on documents that were not used in its development
    Demo(demo::Args),
    /// Engine compared with llama.cpp: prefill, decoding, batches, shares of the machine's limits
    Engine(engine::Args),
    /// Worker process of `engine`
    #[command(hide = true)]
    EngineWorker(engine::worker::Args),
    /// Evidence: whether citations name what an answer stands on, and what their record costs
    Evidence(evidence::Args),
    /// A model on a GPU: logits beside the CPU's, speed, shares of the GPU's rates, and time in slots
    Gpu(gpu::Args),
    /// Keys and values of the cloud in place of a prefill: equal bits, times by line and form, and quality
    Handoff(handoff::Args),
    /// Several answers at once: on a device, with proposed tokens in the cloud, and the host's own cost
    Host(host::Args),
    /// Attacks on the cloud service: how much they delay and cost others
    Hostile(hostile::Args),
    /// Verified answers: drafts of the device that the cloud checks, beside the cloud alone and the relay
    Lossless(lossless::Args),
    /// Write a GGUF file with random weights and the shape of a published model
    MakeModel(make_model::Args),
    /// Mask of kept sentences: its size, and the time to encode and decode it
    Mask(mask::Args),
    /// Pipelined offloading: weights read from the disk or loaded to a GPU while others are computed
    Offload(offload::Args),
    /// Optimizer: its r and L compared with brute force and HiGHS, and its speed
    Optimizer(optimizer::Args),
    /// Speed controller (pacing) on simulated networks and devices
    Pacing(pacing::Args),
    /// Parity: the engine's logits compared with candle-core and recorded llama.cpp logits
    Parity(parity::Args),
    /// Planner of the home cluster: compared with brute force, Halda and simple heuristics, and its speed
    Planner(planner::Args),
    /// Privacy: private values that the device finds, by kind and language, and whether any value leaves the
    /// device
    Privacy(privacy::Args),
    /// Prefix cache: time to the first token of requests that share a prefix, with and without the cache
    Prefix(prefix::Args),
    /// Quality of answers and masks over r, L, mode and length, with the demo models
    Quality(quality::Args),
    /// Refiner: the cost of a mask compared with prefill, choices of layers and windows, and an early mask
    Refiner(refiner::Args),
    /// Residency: a model larger than its memory limit, streamed compared with only memory-mapped
    Residency(residency::Args),
    /// Worker process of `residency`
    #[command(hide = true)]
    ResidencyWorker(residency::worker::Args),
    /// Ring of devices: tokens compared with one device, hops, memory, links, and predicted times
    Ring(ring::Args),
    /// Segmenter: answers that sentence boundaries cut in two, and the speed of splitting
    Segmenter(segmenter::Args),
    /// Simulation of cloud, network, devices and rings in virtual time: checks on many seeds, and planted
    /// bugs
    Sim(sim::Args),
    /// Engines elsewhere: what the service adds before the first token and to each, and requests/s at L
    Upstream(upstream::Args),
}

fn main() -> ExitCode {
    baton_terminal::filter_panics();
    let cli = Cli::parse();
    let mut result = match cli.bench {
        Bench::Adapters(args) => adapters::run(&args),
        Bench::Agent(args) => agent::run(&args),
        Bench::Cloud(args) => cloud::run(&args),
        Bench::Demo(args) => demo::run(&args),
        Bench::Engine(args) => engine::run(&args),
        Bench::EngineWorker(args) => return report::exit(engine::worker::run(&args)),
        Bench::Evidence(args) => evidence::run(&args),
        Bench::Gpu(args) => gpu::run(&args),
        Bench::Handoff(args) => handoff::run(&args),
        Bench::Host(args) => host::run(&args),
        Bench::Hostile(args) => hostile::run(&args),
        Bench::Lossless(args) => lossless::run(&args),
        Bench::MakeModel(args) => make_model::run(&args),
        Bench::Mask(args) => mask::run(&args),
        Bench::Offload(args) => offload::run(&args),
        Bench::Optimizer(args) => optimizer::run(&args),
        Bench::Pacing(args) => pacing::run(&args),
        Bench::Parity(args) => parity::run(&args),
        Bench::Planner(args) => planner::run(&args),
        Bench::Privacy(args) => privacy::run(&args),
        Bench::Prefix(args) => prefix::run(&args),
        Bench::Quality(args) => quality::run(&args),
        Bench::Refiner(args) => refiner::run(&args),
        Bench::Residency(args) => residency::run(&args),
        Bench::ResidencyWorker(args) => return report::exit(residency::worker::run(&args)),
        Bench::Ring(args) => ring::run(&args),
        Bench::Segmenter(args) => segmenter::run(&args),
        Bench::Sim(args) => sim::run(&args),
        Bench::Upstream(args) => upstream::run(&args),
    };
    if let (true, Ok(report)) = (cli.json, &mut result) {
        report.print_only_json();
    }
    report::finish(result)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_bench_prints_only_its_json_object_on_request() {
        let mut command = Cli::command();
        command.build();
        let takes = |bench: &clap::Command| bench.get_arguments().any(|arg| arg.get_long() == Some("json"));
        let benches: Vec<&clap::Command> =
            command.get_subcommands().filter(|bench| bench.get_name() != "help").collect();
        assert!(benches.len() > 10, "the benches are subcommands");
        let without: Vec<&str> =
            benches.iter().filter(|bench| !takes(bench)).map(|bench| bench.get_name()).collect();
        assert_eq!(without, Vec::<&str>::new());
        let parsed = Cli::try_parse_from(["baton-bench", "pacing", "--json"]);
        assert!(parsed.is_ok_and(|cli| cli.json));
    }
}
