//! HAProxy in front of several replicas, like the gateway of a cluster.
//!
//! Responses pass through as they come. A request is tried on another replica only if none has begun to
//! answer it: the connection failed, or the replica is stopping and answered 503. Ten times a second HAProxy
//! asks each replica whether it takes requests.

use std::{fmt::Write as _, net::TcpListener, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

/// Most tries to start. A free port is found before HAProxy binds it, so another program may take it first.
const TRIES: usize = 5;
/// Longest time for HAProxy to listen: a guard against hangs.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How requests are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// To one replica after the other.
    RoundRobin,
    /// By a consistent hash of the scene that a device names in `x-baton-scene`.
    Scene,
}

/// A running HAProxy, killed when dropped.
#[derive(Debug)]
pub struct Balancer {
    _child: Child,
    _scratch: tempfile::TempDir,
    address: String,
    figures: String,
}

impl Balancer {
    /// Returns the path of HAProxy on this machine, if it is installed.
    #[must_use]
    pub fn program() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        folders.map(|folder| folder.join("haproxy")).find(|path| path.is_file())
    }

    /// Starts HAProxy on a free port in front of replicas at `host:port`.
    ///
    /// # Errors
    /// Fails if it is not installed, or does not start.
    pub async fn start(replicas: &[&str], spread: Spread) -> anyhow::Result<Self> {
        let program = Self::program().context("haproxy is not installed")?;
        let scratch = tempfile::tempdir().context("make a folder")?;
        let file = scratch.path().join("haproxy.cfg");
        for _ in 0..TRIES {
            let (address, figures) = (free_address()?, free_address()?);
            std::fs::write(&file, settings(&address, &figures, replicas, spread))
                .context("write settings")?;
            let mut child = Command::new(&program)
                .args(["-db", "-q", "-f"])
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .kill_on_drop(true)
                .spawn()
                .context("start haproxy")?;
            if listens(&mut child, &address).await? {
                return Ok(Self { _child: child, _scratch: scratch, address, figures });
            }
        }
        bail!("haproxy found no free port in {TRIES} tries")
    }

    /// Returns the address of the API, for a device.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how many replicas take requests, according to HAProxy.
    ///
    /// # Errors
    /// Fails if HAProxy does not answer.
    pub async fn up(&self) -> anyhow::Result<usize> {
        let figures = crate::http::client().get(format!("http://{}/;csv", self.figures));
        let text = figures.send().await.context("ask haproxy")?;
        let text = text.text().await.context("read haproxy's figures")?;
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = lines.next().context("haproxy said nothing")?;
        let status = head.iter().position(|name| *name == "status").context("haproxy names no status")?;
        let is_up = |line: &Vec<&str>| {
            line.first() == Some(&"replicas")
                && line.get(1).is_some_and(|name| name.starts_with("replica-"))
                && line.get(status).is_some_and(|text| text.starts_with("UP"))
        };
        Ok(lines.filter(is_up).count())
    }
}

/// Waits until HAProxy listens; returns false if it ended, which it does if the port was taken.
async fn listens(child: &mut Child, address: &str) -> anyhow::Result<bool> {
    let connect = async {
        loop {
            if child.try_wait().context("look at haproxy")?.is_some() {
                return Ok(false);
            }
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(START_LIMIT, connect).await.context("haproxy does not listen in time")?
}

fn free_address() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("read the port")?.to_string())
}

fn settings(address: &str, figures: &str, replicas: &[&str], spread: Spread) -> String {
    let spread = match spread {
        Spread::RoundRobin => "balance roundrobin",
        Spread::Scene => "balance hdr(x-baton-scene)\n    hash-type consistent",
    };
    let mut text = format!(
        "global
    maxconn 512
    nbthread 1
    # A request that is tried again is kept whole.
    tune.bufsize 262144
defaults
    mode http
    timeout connect 30s
    timeout client 120s
    timeout server 120s
    timeout check 30s
    option http-server-close
    option redispatch 1
    retries 5
    retry-on conn-failure 503
frontend agents
    bind {address}
    default_backend replicas
listen figures
    bind {figures}
    stats enable
    stats uri /
backend replicas
    {spread}
    option httpchk GET /readyz
    http-check expect status 200
    default-server check inter 100ms fall 1 rise 1
"
    );
    for (idx, replica) in replicas.iter().enumerate() {
        writeln!(text, "    server replica-{idx} {replica}").expect("writing to a string never fails");
    }
    text
}
