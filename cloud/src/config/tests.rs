//! Tests of the settings of `serve`.

use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: ServeOptions,
}

fn parsed(words: &[&str]) -> Result<Config, String> {
    let words = ["serve", "--model", "m.gguf"].iter().chain(words);
    let line = Line::try_parse_from(words).map_err(|err| err.to_string())?;
    line.options.check().map_err(|err| err.to_string())
}

#[track_caller]
fn refused(words: &[&str], want: &str) {
    let err = parsed(words).unwrap_err();
    assert!(err.contains(want), "{words:?}: {err}");
}

#[test]
fn defaults_are_served_on_loopback() {
    let config = parsed(&["--listen", "127.0.0.1:0"]).unwrap();
    assert_eq!(config.models.len(), 1);
    assert_eq!((config.models[0].name.as_str(), &config.models[0].calibration), ("m", &None));
    assert_eq!(config.database, Database::File("./baton-cloud.db".into()));
    assert!(config.emulation.is_none());
    assert_eq!((config.gpu, config.vram), (GpuChoice::Auto, None));
    assert!(config.listen.ip().is_loopback());
    assert_eq!((config.budget, config.prefix_cache_percent), (StepBudget::default(), 100));
    assert_eq!(config.edge.http, baton_edge::HttpLimits::default(), "the help says what the types say");
    assert_eq!(config.edge.api, crate::api::ApiLimits::default());
    assert_eq!((config.backlog, config.deadline), (BacklogBound::default(), None));
    let fixed = parsed(&["--mixed-tokens", "48"]).unwrap().budget.mixed;
    assert_eq!(fixed, MixedTokens::Fixed(48));
}

#[test]
fn an_open_address_needs_a_key() {
    refused(&["--listen", "0.0.0.0:0"], "refusing to listen on 0.0.0.0:0 without a key");
    refused(&["--listen", "[::]:0"], "without a key");
    refused(&["--listen", "0.0.0.0:0", "--api-key", "two words"], "visible ASCII");
    refused(&["--listen", "0.0.0.0:0", "--api-key", ""], "visible ASCII");
    assert!(parsed(&["--listen", "0.0.0.0:0", "--api-key", "secret"]).is_ok());
    assert!(parsed(&["--listen", "[::ffff:127.0.0.1]:0"]).is_ok());
}

#[test]
fn numbers_are_bounded() {
    refused(&["--slots", "0"], "--slots");
    refused(&["--slots", "2000"], "--slots is 2000, it must be from 1 to 1024");
    refused(&["--slots", "0"], "it must be a whole number, 1 or more");
    refused(&["--queue=-1"], "--queue");
    refused(&["--queue", "x"], "it must be a whole number, 0 or more");
    refused(&["--queue-seconds", "soon"], "it must be a number");
    refused(&["--queue-seconds", "-1"], "--queue-seconds is -1, it must be from 0 to 86400");
    refused(&["--queue-seconds=-1"], "--queue-seconds is -1, it must be from 0 to 86400");
    refused(&["--deadline", "NaN"], "--deadline is NaN");
    refused(&["--connections", "0"], "--connections is 0, it must be from 1 to 1048576");
    refused(&["--header-timeout", "0"], "--header-timeout is 0, it must be from 0.01 to 86400 seconds");
    refused(&["--body-mib", "2000"], "--body-mib is 2000, it must be from 1 to 1024");
    refused(&["--body-mib", "43"], "--bodies-mib is 128, it must be at least three times --body-mib");
    refused(&["--tls-cert", "c.pem"], "--tls-key");
    refused(&["--chunk-tokens", "70000"], "--chunk-tokens");
    refused(&["--mixed-tokens", "70000"], "--mixed-tokens is 70000, it must be from 1 to 65536");
    refused(&["--max-stall", "1"], "--max-stall is 1, it must be from 1.1 to 1000");
    refused(&["--max-stall", "NaN"], "--max-stall is NaN");
    refused(&["--max-stall", "3", "--mixed-tokens", "64"], "cannot be used with");
    refused(&["--prefix-cache", "101"], "--prefix-cache is 101, it must be from 0 to 100");
    refused(&["--emulate-decode-ms=-1"], "emulated `decode_ms` is -1 ms");
    refused(&["--emulate-prefill-base-ms", "NaN"], "emulated `base_ms` is NaN ms");
    refused(&["--database", "mysql://x"], "is not supported");
    refused(&["--listen", "nowhere"], "is not HOST:PORT");
    refused(&["--metrics-listen", "nowhere"], "is not HOST:PORT");
    refused(&["--otlp-endpoint", "https://collector:4318"], "must be http://HOST:PORT");
}

#[test]
fn emulation_is_on_where_one_figure_is_given() {
    let config = parsed(&["--emulate-prefill-ms-per-token", "0.1"]).unwrap();
    let cost = config.emulation.unwrap();
    assert_eq!((cost.base_ms, cost.prefill_ms_per_token, cost.decode_ms), (0.0, 0.1, 0.0));
}

#[test]
fn a_gpu_and_its_memory_are_chosen() {
    let config = parsed(&["--gpu", "cuda:1", "--vram", "40GB", "--gpu-offload"]).unwrap();
    assert!(config.gpu_offload);
    assert_eq!((config.gpu.to_string().as_str(), config.vram), ("cuda:1", Some(VramLimit(40_000_000_000))));
    let off = parsed(&["--gpu", "off"]).unwrap();
    assert_eq!(off.changes(&config), [("--gpu or --vram", false), ("--gpu-offload", false)]);
    refused(&["--gpu", "rocm"], "want auto, off, or a device such as cuda:0");
    refused(&["--vram", "40"], "want a size like 6GB or 512MiB");
}
