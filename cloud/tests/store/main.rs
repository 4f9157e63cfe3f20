//! The store on both databases: SQLite files and a private PostgreSQL server; skipped where there is none, with the
//! reason. Versions, conflicts, keys, users, sessions, the audit chain, quotas, telemetry; full disks; TLS to PostgreSQL; and the real program
//! while its database is stopped and started.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "../../../tests/src/postgres.rs"]
mod postgres;

mod access;
mod audit;
mod logins;
mod outage;
mod program;
mod properties;
mod scenes;
mod schema;
mod storage;
mod tls;
mod usage;
mod world;
