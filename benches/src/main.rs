//! `baton-bench`: the measurements the project states figures for, each a subcommand that runs from a fresh
//! checkout, prints a readable table and, as its last line, one JSON object; it exits with 1 where a check fails.
//!
//! One module per subcommand, with an `Args` (options) and a `run` (work) of its own. Nothing here is used by
//! the programs themselves.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cgroup;
mod clock;
mod cloud;
mod demo;
mod engine;
mod hostile;
mod make_model;
mod mask;
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

#[derive(Debug, Parser)]
#[command(name = "baton-bench", version, about = "Measures what the project states figures for")]
struct Cli {
    /// Print nothing but the JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// The cloud service's slots: time that requests hold them, and requests a second with all of them taken
    Cloud(cloud::Args),
    /// How often the demo's answers are right, over documents that it was not written with
    Demo(demo::Args),
    /// The engine beside llama.cpp: prefill, decoding, batches; shares of the machine's limits
    Engine(engine::Args),
    /// Answers the requests of `engine` over the engine
    #[command(hide = true)]
    EngineWorker(engine::worker::Args),
    /// First tokens of a neighbour while others attack the cloud service
    Hostile(hostile::Args),
    /// Write a GGUF file of random weights with the shape of a published model
    MakeModel(make_model::Args),
    /// Size and speed of the keep-or-drop mask of a document's sentences
    Mask(mask::Args),
    /// The optimizer's r and L against brute force and HiGHS, and what they cost
    Optimizer(optimizer::Args),
    /// The speed controller on simulated networks and devices
    Pacing(pacing::Args),
    /// The engine's logits against candle-core and recorded llama.cpp logits
    Parity(parity::Args),
    /// The home cluster's exact planner against brute force, Halda and rules of thumb, and what planning costs
    Planner(planner::Args),
    /// Private values that the device finds, by kind and language, and whether any leaves in a conversation
    Privacy(privacy::Args),
    /// Time to the first token of requests that share a prefix, with and without the prefix cache
    Prefix(prefix::Args),
    /// Quality of answers and masks over r, L, mode and length, with the demo models
    Quality(quality::Args),
    /// What a sentence mask costs beside prefill; layers and windows; an early mask
    Refiner(refiner::Args),
    /// A model that is larger than the memory it may use: streamed beside plainly mapped
    Residency(residency::Args),
    /// Decodes for `residency`
    #[command(hide = true)]
    ResidencyWorker(residency::worker::Args),
    /// A ring of devices: its tokens beside one device's, hops, memory, links, and what was predicted
    Ring(ring::Args),
    /// Answers that sentence boundaries cut in two, and how fast boundaries are found
    Segmenter(segmenter::Args),
}

fn main() -> ExitCode {
    baton_terminal::filter_panics();
    let cli = Cli::parse();
    let mut result = match cli.bench {
        Bench::Cloud(args) => cloud::run(&args),
        Bench::Demo(args) => demo::run(&args),
        Bench::Engine(args) => engine::run(&args),
        Bench::EngineWorker(args) => return report::exit(engine::worker::run(&args)),
        Bench::Hostile(args) => hostile::run(&args),
        Bench::MakeModel(args) => make_model::run(&args),
        Bench::Mask(args) => mask::run(&args),
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
