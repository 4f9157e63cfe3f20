//! A private PostgreSQL for one test: its own folder, a unix socket, TCP only on request, removed at the end.
//!
//! PostgreSQL refuses to run as root; if the tests run as root, it runs as `postgres` or `nobody`. Never
//! touches an existing server.

use std::{
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

/// Longest time to start or stop the server: a guard against hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// The server's superuser.
const ROLE: &str = "baton";
/// Most tries to start. A free port is found before PostgreSQL binds it, so another program may take it
/// first.
const TRIES: usize = 5;

/// How the server can be reached in addition to its unix socket, over which PostgreSQL never speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// In no other way.
    Socket,
    /// By TCP on loopback, not encrypted.
    Tcp,
    /// By TCP on loopback, with TLS if a client asks for it.
    Tls {
        /// The server's certificate, PEM.
        certificate: String,
        /// Its private key, PEM.
        key: String,
    },
}

/// An account of this machine.
#[derive(Debug, Clone)]
struct Account {
    name: String,
    user: u32,
    group: u32,
}

/// A private server; stopped when dropped.
#[derive(Debug)]
pub struct Postgres {
    folder: tempfile::TempDir,
    programs: PathBuf,
    account: Option<Account>,
    /// The TCP port, if it listens on TCP.
    port: Option<u16>,
    tls: bool,
    server: Option<Child>,
}

/// Finds the folder with `initdb` and `postgres`: the newest that Debian installed, or one in the path.
///
/// # Errors
/// Fails if there is none; the message is the reason to skip a test.
pub fn programs() -> anyhow::Result<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut versions: Vec<PathBuf> =
        debian.map(|entry| entry.path()).filter(|path| version(path).is_some()).collect();
    versions.sort_by_key(version);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest_first = versions.into_iter().rev().map(|path| path.join("bin"));
    let mut folders = newest_first.chain(std::env::split_paths(&path));
    folders.find(|folder| folder.join("initdb").is_file()).context("no initdb (Debian's postgresql)")
}

impl Postgres {
    /// Makes a database cluster and starts it.
    ///
    /// # Errors
    /// Fails if PostgreSQL is not installed, there is no account for it, or it does not start.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&Reach::Socket)
    }

    /// Like [`Postgres::start`], and makes the server reachable as asked.
    ///
    /// # Errors
    /// The errors of [`Postgres::start`].
    pub fn start_with(reach: &Reach) -> anyhow::Result<Self> {
        let mut postgres = Self::prepare()?;
        if let Reach::Tls { certificate, key } = reach {
            postgres.write("server.crt", certificate)?;
            postgres.write("server.key", key)?;
            postgres.tls = true;
        }
        if *reach == Reach::Socket {
            postgres.start_again()?;
            return Ok(postgres);
        }
        for _ in 1..TRIES {
            postgres.port = Some(free_port()?);
            if postgres.start_again().is_ok() {
                return Ok(postgres);
            }
            postgres.stop()?;
        }
        postgres.port = Some(free_port()?);
        postgres.start_again()?;
        Ok(postgres)
    }

    /// Makes the files of a server, without starting it.
    fn prepare() -> anyhow::Result<Self> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("pg").tempdir().context("make a folder")?;
        let account = if is_root()? { Some(unprivileged()?) } else { None };
        if let Some(account) = &account {
            chown(folder.path(), Some(account.user), Some(account.group)).context("give the folder away")?;
        }
        let postgres = Self { folder, programs, account, port: None, tls: false, server: None };
        let out = postgres
            .command("initdb")
            .args([
                "--username",
                ROLE,
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
                "-D",
            ])
            .arg(postgres.data())
            .output()
            .context("run initdb")?;
        ensure!(out.status.success(), "initdb failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(postgres)
    }

    /// Writes a file that only the server may read.
    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).with_context(|| format!("write {name}"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).context("close a file")?;
        if let Some(account) = &self.account {
            chown(&path, Some(account.user), Some(account.group)).context("give a file away")?;
        }
        Ok(())
    }

    /// Starts the server again after [`Postgres::stop`], with its data.
    ///
    /// # Errors
    /// Fails if it does not start in time.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        ensure!(self.server.is_none(), "the server runs already");
        let mut settings = vec!["fsync=off".to_owned(), "unix_socket_permissions=0777".to_owned()];
        settings.push(match self.port {
            None => "listen_addresses=".to_owned(),
            Some(_) => "listen_addresses=127.0.0.1".to_owned(),
        });
        settings.extend(self.port.map(|port| format!("port={port}")));
        if self.tls {
            let file = |name: &str| self.folder.path().join(name).display().to_string();
            settings.push("ssl=on".to_owned());
            settings.push(format!("ssl_cert_file={}", file("server.crt")));
            settings.push(format!("ssl_key_file={}", file("server.key")));
        }
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        for setting in &settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).context("make a log")?;
        self.server = Some(command.stdout(Stdio::null()).stderr(log).spawn().context("start postgres")?);
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let mut ask = self.command("pg_isready");
            ask.args(["-q", "-h"]).arg(self.folder.path());
            if let Some(port) = self.port {
                ask.args(["-p", &port.to_string()]);
            }
            let ready = ask.status();
            if ready.context("run pg_isready")?.success() {
                return Ok(());
            }
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if let Some(status) = ended {
                bail!("postgres ended with {status}: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("postgres is not ready after {} s: {}", LIMIT.as_secs(), self.log())
    }

    /// Stops the server in its fast mode: open connections are closed at once.
    ///
    /// # Errors
    /// Fails if it does not stop.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let out = self
            .command("pg_ctl")
            .args(["stop", "-m", "fast", "-w", "-t", &LIMIT.as_secs().to_string(), "-D"])
            .arg(self.data())
            .output()
            .context("run pg_ctl")?;
        if !out.status.success() {
            server.kill().context("kill postgres")?;
        }
        server.wait().context("wait for postgres")?;
        Ok(())
    }

    /// Returns the server's address for `--database`.
    #[must_use]
    pub fn url(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("postgres://{ROLE}@localhost{port}/postgres?host={}", self.folder.path().display())
    }

    /// Returns the server's TCP address with the name `host` and further options such as `sslmode=require`;
    /// `None` if it does not listen on TCP.
    #[must_use]
    pub fn tcp_url(&self, host: &str, options: &str) -> Option<String> {
        Some(format!("postgres://{ROLE}@{host}:{}/postgres?{options}", self.port?))
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default().trim().to_owned()
    }

    /// Makes a command for one of PostgreSQL's programs, run by the account that may run it.
    fn command(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        let mut command = match &self.account {
            None => Command::new(program),
            Some(account) => {
                let mut command = Command::new("setpriv");
                let (user, group) =
                    (format!("--reuid={}", account.user), format!("--regid={}", account.group));
                command.args([&user, &group]).args(["--clear-groups", "--"]).arg(program);
                command.env("HOME", self.folder.path()).env("USER", &account.name);
                command
            }
        };
        command.current_dir(self.folder.path()).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(err) = self.stop() {
            eprintln!("a test's postgres does not stop: {err:#}");
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("look for a free port")?;
    Ok(listener.local_addr().context("read the address")?.port())
}

fn is_root() -> anyhow::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(Path::new("/proc/self").metadata().context("look at the own process")?.uid() == 0)
}

/// Finds the account for PostgreSQL if the tests run as root.
fn unprivileged() -> anyhow::Result<Account> {
    let text = std::fs::read_to_string("/etc/passwd").context("read the accounts")?;
    let account = |wanted: &str| {
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, user, group, ..] = fields.as_slice() else { return None };
            let found =
                Account { name: (*name).to_owned(), user: user.parse().ok()?, group: group.parse().ok()? };
            (*name == wanted).then_some(found)
        })
    };
    ["postgres", "nobody"].into_iter().find_map(account).context("no account but root to run postgres as")
}
