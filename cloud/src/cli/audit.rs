//! `audit list|verify`: shows and checks the audit log.

use std::io::Write;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::{DatabaseArgs, moment};
use crate::config::numbers;
use crate::store::{AuditCheck, AuditQuery, AuditRow};

/// `audit`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud audit list --target scene/doc-qa\n  \
    baton-cloud audit verify                     prints the end of the chain: keep it elsewhere\n  \
    baton-cloud audit verify --noted 42:9f86d0…  also detects a chain that was rewritten as a whole\n\n\
    Each row's hash covers its fields and the row before it, so altered, deleted, added and moved rows are found.")]
pub struct AuditCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: AuditAction,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `audit`.
#[derive(Debug, Subcommand)]
pub enum AuditAction {
    /// List the newest rows
    List {
        /// Only rows of this target: `scene/ID`, `key/ID`, `tenant/ID`, `class/ID` or `user/NAME`
        #[arg(long, default_value = "")]
        target: String,
        /// Only rows by this actor: `user:NAME`, `cli` or `service`
        #[arg(long, default_value = "")]
        actor: String,
        /// Only rows before this one
        #[arg(long, value_parser = numbers::whole::<u64>, allow_negative_numbers = true)]
        before: Option<u64>,
        /// The most rows to list
        #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=10000))]
        limit: u32,
    },
    /// Check every row; fails if one was altered or is missing
    Verify {
        /// An end of the chain that an earlier `verify` printed
        #[arg(long, value_name = "SEQ:HASH", value_parser = noted_end)]
        noted: Option<(u64, String)>,
    },
}

pub(super) async fn run(command: AuditCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let json = command.database.json;
    let store = command.database.open().await?;
    match command.command {
        AuditAction::List { target, actor, before, limit } => {
            let rows = store.audit(&AuditQuery { before, target, actor, limit }).await;
            store.close().await;
            list(&rows?, json, out).context("print")
        }
        AuditAction::Verify { noted } => {
            let check = store.verify_audit(noted).await;
            store.close().await;
            match check? {
                AuditCheck::Whole(end) => {
                    let text = end.to_text();
                    let line = if json {
                        json!({ "whole": true, "rows": end.seq, "end": text }).to_string()
                    } else {
                        format!("the audit log is whole: {} rows, end {text}", end.seq)
                    };
                    writeln!(out, "{line}").context("print")
                }
                AuditCheck::Broken { seq, fault } => {
                    if json {
                        let value = json!({ "whole": false, "row": seq, "fault": fault.to_string() });
                        writeln!(out, "{value}").context("print")?;
                    }
                    bail!("the audit log is broken at row {seq}: {fault}")
                }
            }
        }
    }
}

fn list(rows: &[AuditRow], json: bool, out: &mut impl Write) -> std::io::Result<()> {
    if json {
        let value: Value = rows.iter().map(AuditRow::to_json).collect();
        return writeln!(out, "{value}");
    }
    let columns = [
        ("row", Side::Right),
        ("at (UTC)", Side::Left),
        ("who", Side::Left),
        ("what", Side::Left),
        ("to", Side::Left),
        ("detail", Side::Left),
    ];
    let cells = |row: &AuditRow| {
        let (at, detail) = (moment(row.at_ms), row.detail.clone());
        [row.seq.to_string(), at, row.actor.clone(), row.action.clone(), row.target.clone(), detail]
    };
    columns::write(columns, rows.iter().map(cells), out)
}

fn noted_end(text: &str) -> anyhow::Result<(u64, String)> {
    let want = || format!("`{text}` is no end of an audit log: SEQ:HASH with 64 hex digits");
    let (seq, hash) = text.split_once(':').with_context(want)?;
    let seq = seq.parse().with_context(want)?;
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!(want());
    }
    Ok((seq, hash.to_ascii_lowercase()))
}
