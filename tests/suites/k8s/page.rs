//! The operator's page is correct: everything that it names exists, and its example can be recomputed.

use std::collections::{BTreeMap, BTreeSet};

use baton_cloud::cli::Cli;
use clap::Parser as _;

use super::{check, folder, options::known, read};

fn page() -> String {
    read(&folder().join("README.md"))
}

/// Returns the texts between single back quotes, without those in blocks.
fn quoted(page: &str) -> Vec<&str> {
    let prose = page.split("\n```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

/// Returns the lines of the code blocks.
fn block_lines(page: &str) -> impl Iterator<Item = &str> {
    page.split("\n```").skip(1).step_by(2).flat_map(|block| block.lines().skip(1))
}

#[test]
fn options_on_the_page_exist() {
    let page = page();
    let mut exist: BTreeSet<String> =
        ["serve", "scenes", "models import"].into_iter().flat_map(known).map(|(name, _)| name).collect();
    exist.extend(["help", "version"].map(str::to_owned));
    let mut offences = Vec::new();
    let mut seen = 0;
    for text in quoted(&page) {
        let Some(option) = text.strip_prefix("--") else { continue };
        let name = option.split(['=', ' ']).next().unwrap_or_default();
        seen += 1;
        if !exist.contains(name) {
            offences.push(format!("`--{name}`"));
        }
    }
    check("options that the program does not have", &offences);
    assert!(seen >= 5, "the page names {seen} options: it is not read right");
}

#[test]
fn places_on_the_page_exist() {
    let page = page();
    let mut offences = Vec::new();
    let named = quoted(&page).into_iter().chain(page.split(['(', ')']).filter(|text| !text.contains(' ')));
    for place in named.filter(|text| {
        ["base/", "components/", "overlays/", "observability/"].iter().any(|start| text.starts_with(start))
    }) {
        if !folder().join(place).exists() {
            offences.push(place.to_owned());
        }
    }
    for line in block_lines(&page) {
        for word in line.split_whitespace().filter(|word| word.starts_with("k8s/")) {
            if !folder().join(word.trim_start_matches("k8s/")).exists() {
                offences.push(word.to_owned());
            }
        }
    }
    check("places that are not there", &offences);
}

#[test]
fn every_component_and_overlay_is_explained() {
    let page = page();
    let mut offences = Vec::new();
    for kind in ["components", "overlays"] {
        for entry in std::fs::read_dir(folder().join(kind)).expect("list a folder") {
            let name = entry.expect("list a folder").file_name().to_string_lossy().into_owned();
            if !page.contains(&format!("`{name}`")) && !page.contains(&format!("`{kind}/{name}`")) {
                offences.push(format!("{kind}/{name}"));
            }
        }
    }
    check("not on the operator's page", &offences);
}

#[test]
fn commands_on_the_page_are_commands() {
    let page = page();
    let mut offences = Vec::new();
    let mut seen = 0;
    for line in block_lines(&page) {
        let Some((_, words)) = line.split_once("/usr/local/bin/baton-cloud") else { continue };
        seen += 1;
        let words = words.split('#').next().unwrap_or_default().split_whitespace();
        if let Err(err) = Cli::try_parse_from(std::iter::once("baton-cloud").chain(words)) {
            offences.push(format!("{line}: {err}"));
        }
    }
    check("commands that the program does not have", &offences);
    assert!(seen >= 4, "the page shows {seen} commands: it is not read right");
}

/// Checks a value rounded as it is printed.
fn is_printed(value: f64, digits: i32, page: f64) -> bool {
    let scale = 10_f64.powi(digits);
    ((value * scale).round() / scale - page).abs() < 1e-9
}

#[test]
fn the_example_can_be_recomputed() {
    let page = page();
    let figures: BTreeMap<&str, f64> = block_lines(&page)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?.parse().ok()?))
        })
        .collect();
    let figure = |name: &str| *figures.get(name).unwrap_or_else(|| panic!("the page has no `{name}`"));
    let new_tokens = figure("prompt_tokens") - figure("cached_tokens");
    let prefill = figure("prefill_base_ms") + figure("k_c_ms") * new_tokens;
    let request = |tokens: f64| prefill + tokens * figure("s_N_ms") / figure("N");
    let per_replica = |tokens: f64| 0.7 * 1000.0 / request(tokens);
    let replicas = |tokens: f64| (figure("peak_requests_s") / per_replica(tokens)).ceil();
    assert!(is_printed(prefill, 1, figure("P_ms")), "P is {prefill}");
    assert!(is_printed(request(figure("L")), 1, figure("request_ms")), "{}", request(figure("L")));
    assert!(
        is_printed(per_replica(figure("L")), 3, figure("replica_requests_s")),
        "{}",
        per_replica(figure("L"))
    );
    assert!(is_printed(replicas(figure("L")), 0, figure("replicas")), "{}", replicas(figure("L")));
    assert!(is_printed(1000.0 / figure("k_c_ms"), 0, figure("backlog_tokens_s")));
    let whole =
        format!("answers {:.3} a second and the same peak needs {}", per_replica(200.0), replicas(200.0));
    assert!(page.contains(&whole), "the page should say: {whole}");
}
