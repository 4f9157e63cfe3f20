//! Log-ins at the console: a flood of wrong passwords from many addresses, and one user who knows the
//! password.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::HANG;
use crate::process::{CloudProcess, cpu_program, models_folder};

/// The administrator of a [`Door`].
pub const NAME: &str = "ann";
/// Time between two measurements of memory during a flood.
const LOOK: Duration = Duration::from_millis(2);

/// A service with a console and one administrator.
#[derive(Debug)]
pub struct Door {
    /// The service.
    pub cloud: CloudProcess,
    /// Its address.
    pub server: SocketAddr,
    /// The administrator's password.
    pub password: String,
    _folder: tempfile::TempDir,
}

impl Door {
    /// Starts the service with the demo model, over a database with one administrator.
    ///
    /// # Errors
    /// Fails if the program is not built, or does not start.
    pub async fn open() -> Result<Door> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let database = folder.path().join("cloud.db");
        let made = Command::from(cpu_program("baton-cloud")?)
            .args(["bootstrap", NAME, "--json", "--database"])
            .arg(&database)
            .output()
            .await
            .context("run bootstrap")?;
        ensure!(made.status.success(), "bootstrap: {}", String::from_utf8_lossy(&made.stderr));
        let made: Value = serde_json::from_slice(&made.stdout).context("read what bootstrap printed")?;
        let password = made["password"].as_str().context("bootstrap printed no password")?.to_owned();
        let database = database.to_str().context("the folder's name is text")?;
        let model = models_folder().join("demo-cloud.gguf");
        let cloud = CloudProcess::start_on(&model, database, &[]).await?;
        let server = cloud.address().parse().context("read the service's address")?;
        Ok(Door { cloud, server, password, _folder: folder })
    }

    /// Logs in from 127.0.0.`host`; `device` is the cookie of an earlier log-in.
    ///
    /// # Errors
    /// Fails if no reply comes, or one that cannot be read.
    pub async fn log_in(&self, host: u8, password: &str, device: Option<&str>) -> Result<Reply> {
        log_in(self.server, host, password, device).await
    }

    /// Logs in with the right password; each time the service asks to wait, waits and tries again.
    ///
    /// # Errors
    /// Fails if the password is refused, or no reply comes.
    pub async fn get_in(&self, host: u8, device: Option<&str>) -> Result<Reply> {
        loop {
            let reply = self.log_in(host, &self.password, device).await?;
            match (reply.status, reply.retry_after) {
                (200, _) => return Ok(reply),
                (429, Some(wait)) => tokio::time::sleep(wait).await,
                _ => anyhow::bail!("the right password is answered by {reply:?}"),
            }
        }
    }
}

/// The reply to a log-in.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// When to try again, if the reply says so.
    pub retry_after: Option<Duration>,
    /// The device's cookie, if there is one.
    pub device: Option<String>,
}

/// Logs in once as the administrator.
async fn log_in(server: SocketAddr, host: u8, password: &str, device: Option<&str>) -> Result<Reply> {
    let socket = TcpSocket::new_v4().context("make a socket")?;
    // On systems other than Linux, only 127.0.0.1 works without setup.
    if cfg!(target_os = "linux") {
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0)).context("bind")?;
    }
    let body = json!({ "name": NAME, "password": password }).to_string();
    let cookie = device.map(|device| format!("cookie: baton_device={device}\r\n")).unwrap_or_default();
    let request = format!(
        "POST /admin/api/v1/session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{cookie}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let talk = async {
        let mut stream = socket.connect(server).await.context("connect")?;
        stream.write_all(request.as_bytes()).await.context("send")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.context("read the reply")?;
        anyhow::Ok(reply)
    };
    let reply = tokio::time::timeout(HANG, talk).await.context("no reply")??;
    let after = |begin: &str| reply.lines().find_map(|line| line.strip_prefix(begin));
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    let seconds = after("retry-after: ").and_then(|seconds| seconds.trim().parse().ok());
    let device = after("set-cookie: baton_device=").and_then(|value| value.split(';').next());
    Ok(Reply {
        status: status.with_context(|| format!("no status in `{reply}`"))?,
        retry_after: seconds.map(Duration::from_secs),
        device: device.map(str::to_owned),
    })
}

/// The results of a flood of wrong passwords.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flood {
    /// Passwords that were checked.
    pub looked_at: usize,
    /// Attempts that were refused before the check.
    pub refused: usize,
    /// Largest growth of the service's memory, in bytes; 0 on systems other than Linux.
    pub growth_bytes: u64,
    /// Time until the last attempt was answered.
    pub took: Duration,
}

/// Sends `count` wrong passwords at once, from `addresses` addresses from 127.0.0.`first` on.
///
/// # Errors
/// Fails if one is accepted, or gets no reply.
pub async fn flood(door: &Door, count: usize, first: u8, addresses: u8) -> Result<Flood> {
    let before = memory(door)?;
    let (begun, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut attempts = JoinSet::new();
    for at in 0..count {
        let (server, host) = (door.server, first + (at % usize::from(addresses)) as u8);
        attempts.spawn(async move { log_in(server, host, "not the password", None).await });
    }
    let answered = async {
        let mut flood = Flood::default();
        while let Some(reply) = attempts.join_next().await {
            match reply.context("an attempt panicked")??.status {
                401 => flood.looked_at += 1,
                429 => flood.refused += 1,
                status => anyhow::bail!("a wrong password is answered by {status}"),
            }
        }
        over.store(true, Ordering::Relaxed);
        Ok(Flood { took: begun.elapsed(), ..flood })
    };
    let looking = async {
        let mut most = before;
        while !over.load(Ordering::Relaxed) {
            most = most.max(memory(door)?);
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(most.max(memory(door)?))
    };
    let (flood, most) = tokio::try_join!(answered, looking)?;
    Ok(Flood { growth_bytes: most - before, ..flood })
}

fn memory(door: &Door) -> Result<u64> {
    if cfg!(target_os = "linux") { door.cloud.memory_bytes() } else { Ok(0) }
}
