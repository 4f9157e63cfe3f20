//! Tests of the store on both databases: SQLite files and a private PostgreSQL server. Without a server those
//! tests are skipped, with the reason. They cover versions, conflicts, keys, users, sessions, the audit
//! chain, quotas and telemetry. They also cover full disks, TLS to PostgreSQL, and the real program while its
//! database is stopped and started.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[allow(unreachable_pub, reason = "the end-to-end tests share this file, and there it is a public module")]
#[path = "../../../tests/src/postgres.rs"]
mod postgres;

mod access;
mod audit;
mod experiments;
mod history;
mod logins;
mod outage;
mod program;
mod properties;
mod rollouts;
mod scenes;
mod schema;
mod storage;
mod tls;
mod usage;
mod world;
