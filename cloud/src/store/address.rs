//! The address of the database, as `--database` gives it, and how the connection is protected.
//!
//! PostgreSQL's `sslmode` is checked before the driver gets it, because the driver does less than some modes
//! promise. With `allow` it never uses TLS, with `require` it ignores `sslrootcert`, and with `verify-ca` it
//! accepts any certificate of a public authority. Such an address is refused, and the error names the mode to
//! use. Never: prints a password. Always: with `sslmode=verify-full`, nothing is sent to a server unless a
//! trusted authority signed its certificate for the name in the address.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use baton_edge::tls::certificates;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::StoreError;

/// A database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// In the memory of this process, gone at its end.
    Memory,
    /// A SQLite file, made if it is missing.
    File(PathBuf),
    /// A PostgreSQL server.
    Postgres(PostgresUrl),
}

/// The address of a PostgreSQL database; may hold a password, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl std::fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PostgresUrl").field(&without_password(&self.0)).finish()
    }
}

impl PostgresUrl {
    fn checked(url: &str) -> Result<PostgresUrl, StoreError> {
        let url = PostgresUrl(url.to_owned());
        url.check_ssl_mode(url.options()?.get_ssl_mode())?;
        Ok(url)
    }

    fn options(&self) -> Result<PgConnectOptions, StoreError> {
        let parsed = self.0.parse();
        parsed.map_err(|err| StoreError::PostgresAddress { address: without_password(&self.0), err })
    }

    /// Refuses modes in which the driver does less than they promise.
    fn check_ssl_mode(&self, mode: PgSslMode) -> Result<(), StoreError> {
        let refused = |mode, why| Err(StoreError::SslMode { mode, why });
        let root = "does not look at sslrootcert: pass verify-full";
        match (mode, self.root_cert()) {
            (PgSslMode::Allow, _) => {
                refused("allow", "would never use TLS: pass prefer, require or verify-full")
            }
            (PgSslMode::VerifyCa, _) => refused("verify-ca", "would trust any host: pass verify-full"),
            (PgSslMode::Require, Some(_)) => refused("require", root),
            (PgSslMode::Prefer, Some(_)) => refused("prefer", root),
            (PgSslMode::Disable, Some(_)) => refused("disable", root),
            _ => Ok(()),
        }
    }

    /// Returns the file of trusted authorities in the address, under any of the names that the driver knows.
    fn root_cert(&self) -> Option<String> {
        let query = self.0.split_once('?')?.1.split('#').next()?;
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let mut named = pairs.filter(|(name, _)| matches!(*name, "sslrootcert" | "ssl-root-cert" | "ssl-ca"));
        named.next_back().map(|(_, value)| percent_decoded(value))
    }

    /// Returns the driver's options. Reads the file of trusted authorities, so that an error names it if it
    /// is missing.
    pub(super) fn connect_options(&self) -> Result<PgConnectOptions, StoreError> {
        let options = self.options()?;
        if let Some(path) = self.root_cert() {
            certificates(Path::new(&path)).map_err(StoreError::RootCert)?;
        }
        Ok(options)
    }
}

impl FromStr for Database {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Database, StoreError> {
        let path = match text.split_once("://") {
            Some(("postgres" | "postgresql", _)) => {
                return PostgresUrl::checked(text).map(Database::Postgres);
            }
            Some(("sqlite", path)) => path,
            Some(_) => return Err(StoreError::Address(without_password(text))),
            None => text.strip_prefix("sqlite:").unwrap_or(text),
        };
        match path {
            "" => Err(StoreError::Address(text.to_owned())),
            ":memory:" => Ok(Database::Memory),
            path => Ok(Database::File(PathBuf::from(path))),
        }
    }
}

impl Database {
    pub(super) fn shown(&self) -> String {
        match self {
            Database::Memory => ":memory:".to_owned(),
            Database::File(path) => path.display().to_string(),
            Database::Postgres(PostgresUrl(url)) => without_password(url),
        }
    }

    /// Says what an attacker on the network could do. Returns `None` if the database is on this machine or
    /// its certificate is verified.
    #[must_use]
    pub fn exposure(&self) -> Option<&'static str> {
        let Database::Postgres(url) = self else { return None };
        let options = url.options().ok()?;
        let host = options.get_host();
        let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let local = options.get_socket().is_some()
            || host.starts_with('/')
            || host == "localhost"
            || ip.is_ok_and(|ip| ip.is_loopback());
        match options.get_ssl_mode() {
            _ if local => None,
            PgSslMode::VerifyFull => None,
            PgSslMode::Disable => Some("read and change what is said: there is no TLS"),
            PgSslMode::Require => Some("pose as the server: its certificate is not verified"),
            _ => Some("take TLS away and read what is said: sslmode=prefer goes on without it"),
        }
    }
}

/// Removes the password from an address, so that it may be printed.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let rest = match rest.rsplit_once('@') {
        Some((who, place)) => {
            let user = who.split_once(':').map_or(who, |(user, _)| user);
            format!("{user}@{place}")
        }
        None => rest.to_owned(),
    };
    // A password may also be in the query. Everything from there on is removed.
    let rest = rest.split_once("password=").map_or(rest.as_str(), |(before, _)| before);
    format!("{scheme}://{rest}")
}

/// Decodes a percent-encoded value of a query.
fn percent_decoded(value: &str) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let hex = hex.and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                out.push(b' ');
                rest = tail;
            }
            (byte, _) => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let check = |text: &str, want: Option<Database>| assert_eq!(text.parse().ok(), want, "{text}");
        check(":memory:", Some(Database::Memory));
        check("sqlite::memory:", Some(Database::Memory));
        check("sqlite://:memory:", Some(Database::Memory));
        check("./a.db", Some(Database::File("./a.db".into())));
        check("sqlite://./a.db", Some(Database::File("./a.db".into())));
        check("sqlite:///var/a.db", Some(Database::File("/var/a.db".into())));
        for url in ["postgres://u:p@host/db", "postgresql:///db?host=/run/pg", "postgres://%2Frun%2Fpg/db"] {
            check(url, Some(Database::Postgres(PostgresUrl(url.into()))));
        }
        check("mysql://host/db", None);
        check("", None);
        check("sqlite://", None);
    }

    #[test]
    fn passwords_are_not_shown() {
        let check = |url: &str, want: &str| {
            let database: Database = url.parse().unwrap();
            assert_eq!(database.shown(), want);
            assert!(!format!("{database:?}").contains("secret"), "{database:?}");
        };
        check("postgres://ann:secret@host:5433/db", "postgres://ann@host:5433/db");
        check("postgres://ann:sec@secret@host/db", "postgres://ann@host/db");
        check("postgres://host/db?password=secret", "postgres://host/db?");
        let err = "mysql://ann:secret@host/db".parse::<Database>().unwrap_err().to_string();
        assert!(err.starts_with("database `mysql://ann@host/db` is not supported"), "{err}");
    }

    /// Returns the error for an address with its causes; empty if it is accepted.
    fn refusal(options: &str) -> String {
        let parsed: Result<Database, StoreError> = format!("postgres://ann:secret@host/db{options}").parse();
        let Err(err) = parsed else { return String::new() };
        let mut text = err.to_string();
        let mut cause = std::error::Error::source(&err);
        while let Some(err) = cause {
            text.push_str(&format!(": {err}"));
            cause = err.source();
        }
        assert!(!text.contains("secret"), "{text}");
        text
    }

    #[test]
    fn modes_that_promise_more_than_the_driver_does_are_refused() {
        for good in [
            "",
            "?sslmode=disable",
            "?sslmode=prefer",
            "?sslmode=require",
            "?sslmode=verify-full",
            "?sslmode=verify-full&sslrootcert=/ca.crt",
        ] {
            assert_eq!(refusal(good), "", "{good}");
        }
        for (bad, want) in [
            ("?sslmode=allow", "sslmode=allow would never use TLS: pass prefer, require or verify-full"),
            (
                "?sslmode=verify-ca&sslrootcert=/ca.crt",
                "sslmode=verify-ca would trust any host: pass verify-full",
            ),
            (
                "?sslmode=require&sslrootcert=/ca.crt",
                "sslmode=require does not look at sslrootcert: pass verify-full",
            ),
            ("?sslrootcert=/ca.crt", "sslmode=prefer does not look at sslrootcert: pass verify-full"),
        ] {
            assert_eq!(refusal(bad), want, "{bad}");
        }
        let unknown = refusal("?sslmode=maybe");
        assert!(unknown.starts_with("address `postgres://ann@host/db?sslmode=maybe`"), "{unknown}");
        assert!(unknown.contains("unknown value \"maybe\" for `ssl_mode`"), "{unknown}");
        let port = refusal("?port=many");
        assert!(port.contains("invalid digit found in string"), "{port}");
    }

    #[test]
    fn the_file_of_authorities_is_found() {
        let check = |query: &str, want: Option<&str>| {
            let url = PostgresUrl(format!("postgres://host/db{query}"));
            assert_eq!(url.root_cert().as_deref(), want, "{query}");
        };
        check("", None);
        check("?sslmode=verify-full", None);
        check("?sslrootcert=/ca.crt&sslmode=verify-full", Some("/ca.crt"));
        check("?sslmode=verify-full&ssl-ca=%2Fmy+c%61.crt", Some("/my ca.crt"));
        check("?sslrootcert=a&ssl-root-cert=100%#x", Some("100%"));
    }

    #[test]
    fn what_is_exposed_is_told() {
        let check = |url: &str, want: Option<&str>| {
            let told = url.parse::<Database>().unwrap().exposure();
            assert_eq!(told.map(|told| told.split(' ').next().unwrap_or_default()), want, "{url}: {told:?}");
        };
        check("a.db", None);
        for host in ["localhost", "127.0.0.1", "[::1]", "%2Frun%2Fpg"] {
            check(&format!("postgres://{host}/db"), None);
        }
        check("postgres://host/db?sslmode=verify-full", None);
        check("postgres://host/db?sslmode=disable", Some("read"));
        check("postgres://host/db?sslmode=require", Some("pose"));
        check("postgres://10.0.0.9/db", Some("take"));
    }
}
