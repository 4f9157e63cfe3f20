//! `baton-eval`: runs a suite over arms, stores every result, and prints a report.

mod cli;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use baton_engine::Model;
use baton_eval::arm::Arm;
use baton_eval::case::Case;
use baton_eval::curves::curves;
use baton_eval::html;
use baton_eval::progress::Bar;
use baton_eval::run::{Ended, Job, Setup, run};
use baton_eval::store::{Row, Store};
use baton_eval::suite::{badcases, facts, longbench, ruler, synonyms, xquad};
use baton_eval::summary::{figures, table};
use baton_refine::{Calibration, ModelMark, QualityCurves};
use baton_terminal::{CLOSED_STATUS, errln, is_closed, outln};
use clap::Parser as _;

use cli::{Cli, Suite};

fn main() -> ExitCode {
    baton_terminal::filter_panics();
    match evaluate(&Cli::parse()) {
        Ok(Ended::Whole) => ExitCode::SUCCESS,
        // The status with which a shell reports a program ended by Ctrl-C.
        Ok(Ended::Stopped) => ExitCode::from(130),
        Err(error) if is_closed(error.as_ref()) => ExitCode::from(CLOSED_STATUS),
        Err(error) => {
            errln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn evaluate(cli: &Cli) -> anyhow::Result<Ended> {
    let setup = setup(cli)?;
    let cases = cases(cli, &setup)?;
    if cases.is_empty() {
        bail!("the suite has no cases with these options");
    }
    let arms = cli.run.arms(&setup.devices)?;
    let mut store = match &cli.run.results {
        Some(path) => Store::open(path, &setup.origin())?,
        None => Store::in_memory(),
    };
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_interrupt(stop.clone());
    let jobs = cases.iter().map(|case| Job { case: case.clone(), arms: arms.clone() }).collect();
    let mut bar = Bar::new();
    let ended = run(&setup, jobs, &mut store, &stop, &mut |done, total, what| bar.draw(done, total, what));
    bar.clear();
    let ended = ended?;
    report(cli, &setup, &store, &cases, &arms)?;
    if ended == Ended::Stopped {
        let goes_on = match &cli.run.results {
            Some(path) => format!("the same command goes on; results so far are in {}", path.display()),
            None => "give --results FILE to be able to go on".to_owned(),
        };
        errln!("stopped: {goes_on}");
    }
    Ok(ended)
}

fn setup(cli: &Cli) -> anyhow::Result<Setup> {
    let open = |path: &Path| Model::open(path).with_context(|| format!("open model `{}`", path.display()));
    let cloud = open(&cli.run.cloud)?;
    let calibration = match &cli.run.heads {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
            let calibration = Calibration::from_json(&text)?;
            if calibration.model_sha256() != cloud.file_sha256() {
                bail!("`{}` was calibrated for another model than `{}`", path.display(), cloud.name());
            }
            calibration.check_model(cloud.config().n_layers, cloud.config().n_heads)?;
            Some(Arc::new(calibration))
        }
    };
    let devices = cli.run.devices.iter().map(|device| device.open(&open)).collect::<anyhow::Result<_>>()?;
    Ok(Setup { cloud, calibration, devices, workers: cli.run.workers() })
}

fn cases(cli: &Cli, setup: &Setup) -> anyhow::Result<Vec<Case>> {
    let tokenizer = setup.cloud.tokenizer();
    Ok(match &cli.suite {
        Suite::Facts(args) => facts::cases(&args.options(), tokenizer),
        Suite::Badcases(args) => badcases::cases(&args.lengths, args.documents, args.seed, tokenizer),
        Suite::Synonyms { documents, questions, seed } => synonyms::cases(*documents, *questions, *seed),
        Suite::Ruler(args) => ruler::cases(&args.lengths, args.documents, args.seed, tokenizer),
        Suite::Xquad { file, paragraphs, questions } => {
            let text = std::fs::read_to_string(file).with_context(|| format!("read `{}`", file.display()))?;
            xquad::cases(&text, *paragraphs, *questions)?
        }
        Suite::Longbench { folder, count } => longbench::cases(folder, *count)?,
    })
}

/// After the first Ctrl-C, the current layer finishes and the results so far are reported. The second ends
/// the program at once.
fn stop_on_interrupt(stop: Arc<AtomicBool>) {
    let wait = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.store(true, Ordering::Relaxed);
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    };
    // If the thread cannot start, Ctrl-C ends the program at once, which loses at most one case per worker.
    let _thread = std::thread::Builder::new().name("interrupt".into()).spawn(wait);
}

fn report(cli: &Cli, setup: &Setup, store: &Store, cases: &[Case], arms: &[Arm]) -> anyhow::Result<()> {
    // The file may contain results of other options. They stay in the file but are not reported.
    let names: Vec<String> = arms.iter().map(Arm::to_string).collect();
    let rows: Vec<&Row> =
        cases.iter().flat_map(|case| names.iter().filter_map(|arm| store.get(case, arm))).collect();
    let figures = figures(&rows);
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| format!("write `{}`", path.display()))
    };
    if cli.run.json {
        outln!("{}", serde_json::json!({ "about": about(setup), "figures": figures }))?;
    } else {
        outln!("{}", table(&figures))?;
    }
    if let Some(path) = &cli.run.html {
        write(path, html::page(&rows, &figures, &about(setup)))?;
    }
    if let Some(path) = &cli.run.curves {
        let device = setup.devices.first().context("--curves needs a device")?;
        let mark = |model: &Model| ModelMark {
            name: model.name().to_owned(),
            sha256: model.file_sha256().to_owned(),
        };
        let made_by = concat!("baton-eval ", env!("CARGO_PKG_VERSION"));
        let curves = curves(&rows, &device.name);
        let file =
            QualityCurves::new(made_by, cli.suite.seed(), mark(&setup.cloud), mark(&device.model), curves)
                .context(
                    "make quality curves (they need relay arms with mode `none` at r = 1 to compare with)",
                )?;
        write(path, file.to_json())?;
    }
    Ok(())
}

/// Describes the models, one line each.
fn about(setup: &Setup) -> Vec<String> {
    let model = |model: &Model| format!("{} (sha256 {})", model.name(), &model.file_sha256()[..16]);
    let heads = setup
        .calibration
        .as_ref()
        .map_or_else(String::new, |calibration| format!(", {} calibrated heads", calibration.heads().len()));
    let cloud = format!("cloud: {}{heads}", model(&setup.cloud));
    let devices = setup.devices.iter().map(|device| {
        let window = device.window.map_or_else(String::new, |window| {
            format!(", sliding window of {} tokens and {} sinks", window.tokens, window.sinks)
        });
        format!("device {}: {}{window}", device.name, model(&device.model))
    });
    std::iter::once(cloud).chain(devices).collect()
}
