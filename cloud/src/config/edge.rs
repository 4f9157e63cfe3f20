//! Options of connections and requests, as written and as checked.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use baton_edge::HttpLimits;
use baton_edge::tls::TlsFiles;
use clap::Args;
use ipnet::IpNet;

use super::{ConfigError, bounded, numbers, seconds};
use crate::api::{ApiLimits, HELD_PER_BYTE};
use crate::http::own::Hosts;
use crate::http::proxies::Proxies;

/// Limits of connections and requests, as written. Times are in seconds and may have a fraction.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connections and requests")]
pub struct EdgeOptions {
    /// The most connections at the same time, as far as the hard limit of open files allows. For one more,
    /// the oldest idle connection is closed
    #[arg(
        long,
        default_value = "2048",
        value_name = "N",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub connections: usize,
    /// The most connections of one address, or of one IPv6 /64. For one more, the oldest idle one of them is
    /// closed. Raise this limit behind a proxy
    #[arg(
        long,
        default_value = "1024",
        value_name = "N",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub connections_per_ip: usize,
    /// The most requests on one connection before it is closed
    #[arg(
        long,
        default_value = "1000",
        value_name = "N",
        value_parser = numbers::whole::<u64>,
        allow_negative_numbers = true
    )]
    pub requests_per_connection: u64,
    /// Time for the head of a request
    #[arg(
        long,
        default_value = "10",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub header_timeout: f64,
    /// Time until the next request on a connection that is kept alive
    #[arg(
        long,
        default_value = "75",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub idle_timeout: f64,
    /// Time for a whole request body
    #[arg(
        long,
        default_value = "60",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub body_timeout: f64,
    /// Bytes per second at which a request body must arrive on average, after 5 seconds (or the body timeout,
    /// if shorter)
    #[arg(
        long,
        default_value = "2048",
        value_name = "BYTES",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub body_rate: usize,
    /// The largest request body, as sent and as inflated; never more than twice the text of the longest
    /// prompt and 1 MiB
    #[arg(
        long,
        default_value = "24",
        value_name = "MIB",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub body_mib: usize,
    /// How many times its own size a gzip body may have after it is inflated
    #[arg(
        long,
        default_value = "200",
        value_name = "N",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub inflate_ratio: usize,
    /// Memory of all requests that are being read, until they are accepted or refused; a body over 64 KiB
    /// takes three times its size. One tenant gets at most half of it, except with a single request
    #[arg(
        long,
        default_value = "128",
        value_name = "MIB",
        value_parser = numbers::whole::<usize>,
        allow_negative_numbers = true
    )]
    pub bodies_mib: usize,
    /// Host name of this service, besides localhost and its addresses; may be given several times. If it is
    /// given, requests to other host names are refused. While no key is needed, they are refused in any case,
    /// and so are requests from pages of other sites (against DNS rebinding)
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Network of trusted proxies in front of the service, as 10.0.0.0/8; may be given several times. Their
    /// X-Forwarded-For header gives the address by which failed log-ins at the console are counted. By
    /// default no proxy is trusted
    #[arg(long, value_name = "NETWORK")]
    pub trusted_proxy: Vec<String>,
    /// How long a client may go without reading a single byte
    #[arg(
        long,
        default_value = "30",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub write_timeout: f64,
    /// How long running answers may continue after SIGTERM; a second signal stops them at once
    #[arg(
        long,
        default_value = "20",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub drain_timeout: f64,
    /// Certificate chain (PEM): speak TLS; read again when the file changes, and on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Time for a TLS handshake
    #[arg(
        long,
        default_value = "10",
        value_name = "SECONDS",
        value_parser = numbers::number::<f64>,
        allow_negative_numbers = true
    )]
    pub tls_handshake_timeout: f64,
}

/// Limits of connections and requests, as checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// Limits of connections.
    pub http: HttpLimits,
    /// Limits of requests.
    pub api: ApiLimits,
    /// Host names of the service.
    pub hosts: Hosts,
    /// Proxies that are trusted.
    pub proxies: Proxies,
    /// Certificate and key, with TLS.
    pub tls: Option<TlsFiles>,
}

/// The largest value of options that limit connections.
const CONNECTIONS_MAX: usize = 1 << 20;
/// The largest timeout, in seconds.
const TIMEOUT_MAX: f64 = 86_400.0;

impl EdgeOptions {
    pub(super) fn check(&self) -> Result<Edge, ConfigError> {
        let http = HttpLimits {
            connections_max: positive(
                "--connections",
                self.connections,
                CONNECTIONS_MAX,
                "from 1 to 1048576",
            )?,
            connections_per_ip: positive(
                "--connections-per-ip",
                self.connections_per_ip,
                CONNECTIONS_MAX,
                "from 1 to 1048576",
            )?,
            requests_per_connection: positive(
                "--requests-per-connection",
                self.requests_per_connection,
                u64::from(u32::MAX),
                "from 1 to 4294967295",
            )?,
            header_timeout: timeout("--header-timeout", self.header_timeout)?,
            idle_timeout: timeout("--idle-timeout", self.idle_timeout)?,
            handshake_timeout: timeout("--tls-handshake-timeout", self.tls_handshake_timeout)?,
            write_timeout: timeout("--write-timeout", self.write_timeout)?,
            drain_timeout: seconds(
                "--drain-timeout",
                self.drain_timeout,
                0.0,
                TIMEOUT_MAX,
                "from 0 to 86400",
            )?,
        };
        let defaults = ApiLimits::default();
        let body_bytes_max = positive("--body-mib", self.body_mib, 1024, "from 1 to 1024")? << 20;
        let bodies_bytes_max = positive("--bodies-mib", self.bodies_mib, 1 << 20, "from 1 to 1048576")? << 20;
        if bodies_bytes_max < body_bytes_max * HELD_PER_BYTE {
            let want = "at least three times --body-mib: what a request holds while it is read";
            return Err(ConfigError::Number {
                option: "--bodies-mib",
                value: self.bodies_mib.to_string(),
                want,
            });
        }
        let body_timeout = timeout("--body-timeout", self.body_timeout)?;
        let api = ApiLimits {
            body_bytes_max,
            inflated_bytes_max: body_bytes_max,
            inflate_ratio_max: positive("--inflate-ratio", self.inflate_ratio, 2000, "from 1 to 2000")?,
            bodies_bytes_max,
            body_timeout,
            body_rate_min: bounded("--body-rate", self.body_rate, 1 << 30, "at most 1073741824")?,
            body_grace: defaults.body_grace.min(body_timeout),
            ..defaults
        };
        let tls = self.tls_cert.clone().zip(self.tls_key.clone()).map(|(cert, key)| TlsFiles { cert, key });
        let proxies = self.trusted_proxy.iter().map(|text| proxy(text)).collect::<Result<_, _>>()?;
        let hosts = self.allow_host.iter().map(|text| host(text)).collect::<Result<_, _>>()?;
        Ok(Edge { http, api, hosts: Hosts::new(hosts), proxies: Proxies::new(proxies), tls })
    }
}

/// Reads a host name without a port.
fn host(text: &str) -> Result<String, ConfigError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=253).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(ConfigError::Host(text.chars().take(64).collect()))
}

/// Reads a network, or one address.
fn proxy(text: &str) -> Result<IpNet, ConfigError> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map_err(|_| ConfigError::Proxy(text.chars().take(64).collect()))
}

fn timeout(option: &'static str, value: f64) -> Result<Duration, ConfigError> {
    seconds(option, value, 0.01, TIMEOUT_MAX, "from 0.01 to 86400 seconds")
}

fn positive<T: PartialOrd + Default + ToString>(
    option: &'static str,
    value: T,
    max: T,
    want: &'static str,
) -> Result<T, ConfigError> {
    if value == T::default() {
        return Err(ConfigError::Number { option, value: value.to_string(), want });
    }
    bounded(option, value, max, want)
}
