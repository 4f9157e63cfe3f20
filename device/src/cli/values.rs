//! Reads values of options; an error says which values are allowed.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::privacy::OWN_CHARS_MIN;
use baton_protocol::{NumberRange, limits};
use baton_refine::Mode;
use baton_registry::layout::Location;

/// Refiner modes; `--help` and errors name the same ones.
const MODES: &str = "attention, bm25 or none";

/// Makes a parser of whole numbers from `least` to `most`, both included.
pub(super) fn whole<N>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: TryFrom<u64> + 'static,
{
    move |text: &str| {
        let read = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        read.and_then(|number| N::try_from(number).ok())
            .ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

/// Makes a parser of whole numbers for a field of the cloud's request.
pub(super) fn count(
    range: NumberRange,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    whole::<u32>(range.min as u64, range.max as u64)
}

/// Makes a parser of numbers for a field of the cloud's request.
pub(super) fn number(
    range: NumberRange,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let read = text.parse::<f32>().ok().filter(|number| range.check("", *number).is_ok());
        read.ok_or_else(|| format!("must be {} to {}", range.min, range.max))
    }
}

/// Reads a share.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let read = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    read.ok_or_else(|| "must be 0 to 1".to_owned())
}

/// Reads the address of another device; returns where it has files of models.
pub(super) fn peer(text: &str) -> Result<Location, String> {
    let wrong = || "want the address of a `baton serve`, like http://192.168.1.20:8017".to_owned();
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).ok_or_else(wrong)?;
    if rest.trim_end_matches('/').contains('/') {
        return Err(wrong());
    }
    format!("{}/registry", text.trim_end_matches('/')).parse().map_err(|_| wrong())
}

/// Reads a text that is always replaced.
pub(super) fn private_name(text: &str) -> Result<String, String> {
    let letters = text.chars().filter(|c| c.is_alphanumeric()).count();
    let wrong = || {
        format!("want at least {OWN_CHARS_MIN} letters or digits; shorter texts would be found everywhere")
    };
    (letters >= OWN_CHARS_MIN).then(|| text.trim().to_owned()).ok_or_else(wrong)
}

/// How long a model stays in memory after its last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// For this time.
    For(Duration),
    /// As long as the program runs.
    Always,
}

/// Reads how long a model stays in memory.
pub(super) fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    let wrong = || "want a time like 90s, 10m or 2h, or always".to_owned();
    if text == "always" {
        return Ok(KeepAlive::Always);
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let seconds =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).ok_or_else(wrong)?;
    Ok(KeepAlive::For(Duration::from_secs(seconds)))
}

/// Reads a count of at least one.
pub(super) fn one_or_more(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "must be a whole number from 1".to_owned())
}

/// Reads a stop string.
pub(super) fn stop(text: &str) -> Result<String, String> {
    let (bytes, most) = (text.len(), limits::STOP_BYTES_MAX);
    if !(1..=most).contains(&bytes) {
        return Err(format!("must be 1 to {most} bytes long, has {bytes}"));
    }
    Ok(text.to_owned())
}

/// Reads a refiner mode.
pub(super) fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|_| format!("must be {MODES}"))
}

/// Finds the first address of a host, with its port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: &str| format!("want HOST:PORT, such as localhost:8017 ({why})");
    let mut found = text.to_socket_addrs().map_err(|err| wrong(&err.to_string()))?;
    found.next().ok_or_else(|| wrong("the host has no address"))
}

/// An adapter's file, and the name that scenes use for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdapterFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// Reads `NAME=FILE`.
pub(super) fn adapter_file(text: &str) -> Result<AdapterFile, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(AdapterFile { name: name.to_owned(), path: PathBuf::from(path) })
        }
        _ => Err(format!("`{text}` is not NAME=FILE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_refused_by_what_it_must_be() {
        let port = whole::<u16>(1, 70_000);
        assert_eq!((port("1"), port("65535")), (Ok(1), Ok(65_535)));
        for bad in ["0", "-1", "70001", "65536", "x", "", "1.5", "18446744073709551616"] {
            assert_eq!(port(bad), Err("must be a whole number from 1 to 70000".to_owned()), "{bad}");
        }
        assert_eq!(whole::<u64>(0, u64::MAX)("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(count(limits::ASSIST_TOKENS)("65536"), Ok(65_536));
        let ratio = number(limits::RATIO);
        assert_eq!((ratio("0.01"), ratio("1")), (Ok(0.01), Ok(1.0)));
        for bad in ["0.009", "2", "-1", "nan", "inf", "half", ""] {
            assert_eq!(ratio(bad), Err("must be 0.01 to 1".to_owned()), "{bad}");
        }
        assert_eq!(one_or_more("2").map(NonZeroUsize::get), Ok(2));
        assert_eq!(one_or_more("0"), Err("must be a whole number from 1".to_owned()));
    }

    #[test]
    fn every_refiner_mode_is_taken_and_named() {
        let named: Vec<&str> = MODES.split(", ").flat_map(|part| part.split(" or ")).collect();
        assert_eq!(named, Mode::ALL.map(Mode::as_str));
        for known in Mode::ALL {
            assert_eq!(mode(known.as_str()), Ok(known));
        }
        for bad in ["best", "paper", "random:7"] {
            assert_eq!(mode(bad), Err(format!("must be {MODES}")));
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        let seconds = |seconds| Ok(KeepAlive::For(Duration::from_secs(seconds)));
        assert_eq!(["90s", "10m", "2h", "0s"].map(keep_alive), [90, 600, 7200, 0].map(seconds));
        assert_eq!(keep_alive("always"), Ok(KeepAlive::Always));
        assert_eq!(
            peer("http://nas:8017/").map(|at| at.to_string()),
            Ok("http://nas:8017/registry".to_owned())
        );
        for bad in ["nas:8017", "ftp://nas", "http://", "http://nas/x", "http://nas?x"] {
            assert!(peer(bad).is_err_and(|why| why.contains("baton serve")), "{bad}");
        }
        assert_eq!(["0", "0.02", "1"].map(share), [Ok(0.0), Ok(0.02), Ok(1.0)]);
        assert!(["-0.1", "1.1", "NaN", "x"].map(share).iter().all(Result::is_err));
        for bad in ["", "10", "m", "1d", "-1s", "1.5m", "5 m", "18446744073709551615h"] {
            assert!(keep_alive(bad).is_err_and(|why| why.contains("90s, 10m or 2h")), "{bad}");
        }
    }

    #[test]
    fn addresses_are_hosts_with_ports() {
        assert_eq!(address("127.0.0.1:8017"), Ok(SocketAddr::from(([127, 0, 0, 1], 8017))));
        assert!(address("localhost:0").is_ok_and(|found| found.ip().is_loopback()));
        for bad in ["localhost", "8017", "", "127.0.0.1:port", "127.0.0.1:70000"] {
            let said = address(bad).unwrap_err();
            assert!(said.starts_with("want HOST:PORT"), "{bad}: {said}");
        }
    }

    #[test]
    fn an_adapter_has_a_name_and_a_file() {
        assert_eq!(adapter_file("med=b=c.gguf").unwrap().path, PathBuf::from("b=c.gguf"));
        for bad in ["a.gguf", "=a.gguf", "a="] {
            assert_eq!(adapter_file(bad), Err(format!("`{bad}` is not NAME=FILE")));
        }
    }
}
