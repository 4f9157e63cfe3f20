//! `./x demo`: one question about a long document, answered in three ways by the real programs, or by a ring
//! of devices.

use std::{ops::RangeInclusive, path::PathBuf, process::ExitCode};

use baton_e2e::{
    demo::{About, DOCUMENT_TOKENS, Demo, DemoOptions, odds::odds, real},
    process::models_folder,
    stop::{Stop, Stopped},
};
use baton_terminal::{CLOSED_STATUS, errln, is_closed, outln};
use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};

/// Asks one question about a long document in three ways: the device alone, the cloud alone, and the relay.
///
/// Uses the real programs and models, on loopback. Unless --real is given, a phone and a cloud are EMULATED:
/// each pass takes as long as on a machine of their speed (never less), and the output says so.
#[derive(Debug, Parser)]
#[command(name = "./x demo", version)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
    /// Seed that selects the generated document, the question and the sampling
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Ask about all of these seeds, without a table; counts the right answers of the cloud alone and of the
    /// relay
    #[arg(long, value_name = "FIRST..LAST", value_parser = seeds, conflicts_with_all = ["document", "seed"])]
    seeds: Option<RangeInclusive<u64>>,
    /// Print one JSON object as the last line instead of the table
    #[arg(long, global = true)]
    json: bool,
    /// No emulation: this machine is both phone and cloud, at its own speed
    #[arg(long, global = true)]
    real: bool,
    /// Ask about this text file instead of a generated document (needs --question)
    #[arg(long, value_name = "FILE", requires = "question", conflicts_with = "tokens")]
    document: Option<PathBuf>,
    /// Ask SmolLM2-135M-Instruct about an article of Wikipedia: a model that people download, fetched once
    /// (90 MB), on both sides
    #[arg(long, conflicts_with_all = ["document", "seeds", "tokens", "cloud_model", "device_model"])]
    real_model: bool,
    /// The question about --document
    #[arg(long, value_name = "TEXT", requires = "document")]
    question: Option<String>,
    /// GGUF file of the cloud's model
    #[arg(long, global = true, value_name = "FILE")]
    cloud_model: Option<PathBuf>,
    /// GGUF file of the device's model
    #[arg(long, global = true, value_name = "FILE")]
    device_model: Option<PathBuf>,
    /// Least length of the generated document, in tokens
    #[arg(long, global = true, value_name = "N", default_value_t = DOCUMENT_TOKENS, value_parser = clap::value_parser!(u32).range(300..=2400))]
    tokens: u32,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A ring of a head and two workers answers over the relay; no device has memory for the whole model.
    /// Prints the plan and the ring's table
    Ring,
}

/// Reads a range, both ends included.
fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let ends =
        text.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let (first, last): (u64, u64) = ends.ok_or("must be two numbers, such as 1001..1100")?;
    if first > last { Err("the first is above the last".to_owned()) } else { Ok(first..=last) }
}

/// Counts the right answers over these seeds.
async fn count(options: &DemoOptions, seeds: RangeInclusive<u64>) -> anyhow::Result<()> {
    let odds = odds(options, seeds, &mut |line| errln!("{line}")).await?;
    if options.json {
        outln!("{}", odds.json())?;
    } else {
        outln!("{}", odds.describe())?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    baton_terminal::filter_panics();
    let cli = Cli::parse();
    if cli.what.is_some() && (cli.seeds.is_some() || cli.real_model) {
        let words = "--seeds and --real-model belong to the demo without a ring";
        Cli::command().error(ErrorKind::ArgumentConflict, words).exit();
    }
    let models = models_folder();
    let about = match (cli.document, cli.question) {
        (Some(document), Some(question)) => About::Own(document, question),
        _ if cli.real_model => About::Article,
        _ => About::Generated,
    };
    let mut options = DemoOptions {
        seed: cli.seed,
        json: cli.json,
        quiet: false,
        real: cli.real,
        about,
        cloud_model: cli.cloud_model.unwrap_or_else(|| models.join("demo-cloud.gguf")),
        device_model: cli.device_model.unwrap_or_else(|| models.join("demo-device.gguf")),
        document_tokens_min: cli.tokens as usize,
    };
    let run = async {
        match (cli.what, cli.seeds) {
            (Some(What::Ring), _) => Demo::new(options).run_ring().await,
            (None, Some(seeds)) => count(&options, seeds).await,
            (None, None) => {
                if cli.real_model {
                    let model = real::model().await?;
                    (options.cloud_model, options.device_model) = (model.clone(), model);
                }
                Demo::new(options).run().await
            }
        }
    };
    let result = match Stop::listen() {
        Ok(stop) => stop.unless(run).await,
        Err(err) => Err(err),
    };
    let Err(err) = result else { return ExitCode::SUCCESS };
    if let Some(stopped) = err.downcast_ref::<Stopped>() {
        // Dropping the run killed its processes and removed its files.
        errln!("\n{stopped}");
        return ExitCode::from(stopped.exit_code());
    }
    if is_closed(err.as_ref()) {
        return ExitCode::from(CLOSED_STATUS);
    }
    errln!("error: {err:#}");
    ExitCode::FAILURE
}
