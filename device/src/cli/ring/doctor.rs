//! `baton ring doctor`: explains why devices do not see each other, and shows this device's GPUs.

use baton_terminal::{chain, out};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::{NetworkArgs, StateArgs, duration, print_line};
use crate::cli::gpu::{self, GpuArgs};
use crate::machine::gpu::{GpuProfile, USUAL};
use baton_ring::home::doctor::{Finding, ObserveOptions, Severity, diagnose, observe};

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Listen this long for devices that announce themselves; 0 does not listen
    #[arg(long = "for", default_value = "3s", value_name = "TIME", value_parser = duration)]
    listen: Duration,
    /// Longest time for a device to answer
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = duration)]
    answer: Duration,
    /// Print one JSON object: what was seen, and the findings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    state: StateArgs,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    args.network.check()?;
    let folder = args.state.open()?;
    let look =
        ObserveOptions { interfaces: args.network.interfaces(), listen: args.listen, answer: args.answer };
    let seen = observe(&folder, &look);
    let findings = diagnose(&seen);
    let (gpus, unusable) = args.gpu.profiles(&USUAL);
    let unusable = unusable.map(|err| chain(&err));
    let broken = findings.iter().filter(|finding| finding.severity() == Severity::Broken).count();
    let broken = broken + usize::from(unusable.is_some());
    if args.json {
        let all = json!({ "findings": findings, "seen": seen, "gpus": gpus, "gpu_error": unusable });
        print_line(&all)?;
    } else {
        out!("{}{}", text(&findings), gpu_text(&gpus, unusable.as_deref()))?;
    }
    if broken > 0 {
        bail!("{broken} {} to fix", if broken == 1 { "problem" } else { "problems" });
    }
    Ok(())
}

fn text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.severity() {
            Severity::Fine => "ok    ",
            Severity::Odd => "note  ",
            Severity::Broken => "BROKEN",
        };
        out += &format!("{mark}  {finding}\n");
        if !finding.advice().is_empty() {
            out += &format!("        -> {}\n", finding.advice());
        }
    }
    out
}

/// Returns lines about the GPUs, and why the one that the user named cannot be used.
fn gpu_text(gpus: &[GpuProfile], unusable: Option<&str>) -> String {
    let named =
        unusable.map(|why| format!("BROKEN  {why}\n        -> choose another device by --gpu, or auto\n"));
    if gpus.is_empty() {
        return named.unwrap_or_else(|| "ok      no GPU is found or wanted: the CPU computes\n".to_owned());
    }
    let line = |found: &GpuProfile| {
        let mark = if found.problem.is_none() { "ok    " } else { "note  " };
        format!("{mark}  GPU {}", gpu::lines(found))
    };
    named.into_iter().chain(gpus.iter().map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_with_what_to_do() {
        let phone = || "phone".parse().unwrap();
        let at = std::net::SocketAddr::from(([10, 0, 0, 2], 8018));
        let shown =
            text(&[Finding::Reached { name: phone(), at, ms: 2.0 }, Finding::PortClosed(phone(), at)]);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "ok      phone answers at 10.0.0.2:8018 and both keys are pinned (2.0 ms)");
        assert_eq!(lines[1], "BROKEN  phone: nothing listens on 10.0.0.2:8018");
        assert!(lines[2].starts_with("        -> ") && lines.len() == 3, "{shown}");
    }

    #[test]
    fn gpus_are_printed_or_said_to_be_missing() {
        assert_eq!(gpu_text(&[], None), "ok      no GPU is found or wanted: the CPU computes\n");
        let named = "BROKEN  there is no GPU `cuda:0`\n        -> choose another device by --gpu, or auto\n";
        assert_eq!(gpu_text(&[], Some("there is no GPU `cuda:0`")), named);
        let fine = GpuProfile {
            name: "one".to_owned(),
            place: "vulkan:0".to_owned(),
            is_software: false,
            shares_memory: false,
            memory_bytes: Some(1_000_000),
            free_bytes: None,
            rates: None,
            loads_beside: false,
            problem: None,
        };
        let odd =
            GpuProfile { place: "vulkan:1".to_owned(), problem: Some("lost".to_owned()), ..fine.clone() };
        assert_eq!(
            gpu_text(&[fine, odd], Some("there is no GPU `cuda:0`")),
            format!(
                "{named}ok      GPU one (vulkan:0), 1.0 MB\nnote    GPU one (vulkan:1), 1.0 MB\n    cannot be used: lost\n"
            )
        );
    }
}
