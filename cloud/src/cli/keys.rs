//! `keys create|list|revoke|rotate`: manages API keys.

use std::io::Write;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::{DatabaseArgs, moment};
use crate::access::{Actor, ApiKey, DEFAULT_TENANT, KEY_DAYS_MAX, KeySecret, Scopes};
use crate::store::{Expected, NewKey, Store, key_json, now_ms};

/// `keys`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud keys create --label \"ann's phone\"                     a device's key, tenant `default`\n  \
    baton-cloud keys create --tenant acme --scopes assist,chat --days 90\n  \
    baton-cloud keys rotate 1a2b3c4d5e6f --grace 24h                  a new key; the old one expires in a day\n  \
    baton-cloud keys revoke 1a2b3c4d5e6f                              every replica refuses it within 5 s\n\n\
    A key is shown once, when it is made; only its hash is stored. Scopes: assist, chat, scenes:read, stats.")]
pub struct KeysCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: KeyCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `keys`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and show it once
    Create {
        /// Tenant that the key belongs to
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
        /// Name of the key for people
        #[arg(long, default_value = "")]
        label: String,
        /// Scopes that it allows, separated by commas, or `all`
        #[arg(long, default_value = "assist,scenes:read")]
        scopes: Scopes,
        /// Days until it expires; without this option it never does
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(KEY_DAYS_MAX)))]
        days: Option<u32>,
    },
    /// List every key, revoked ones too
    List {
        /// Only keys of this tenant
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Revoke a key: it is refused from now on
    Revoke {
        /// The key's id, the part after `btk_`
        id: String,
    },
    /// Make a key that replaces another one, which stays valid for a while
    Rotate {
        /// The key's id, the part after `btk_`
        id: String,
        /// How long the old key stays valid: 30s, 15m, 24h or 7d
        #[arg(long, default_value = "24h", value_parser = span_ms)]
        grace: i64,
    },
}

pub(super) async fn run(command: KeysCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let shown = command.database.with_store(async |store| perform(store, command.command).await).await?;
    if command.database.json {
        let value = match &shown {
            Output::List(keys) => keys.iter().map(key_json).collect(),
            Output::One(key) => key_json(key),
            Output::Made(key, secret) => made_json(key, secret),
        };
        return writeln!(out, "{value}").context("print");
    }
    match &shown {
        Output::List(keys) => list(keys, out),
        Output::One(key) => list(std::slice::from_ref(key), out),
        Output::Made(key, secret) => {
            writeln!(out, "{}\n\nshown only once: only its hash is stored", secret.reveal())
                .and_then(|()| list(std::slice::from_ref(key), out))
        }
    }
    .context("print")
}

enum Output {
    List(Vec<ApiKey>),
    One(ApiKey),
    Made(ApiKey, KeySecret),
}

async fn perform(store: &Store, command: KeyCommand) -> anyhow::Result<Output> {
    let by = Actor::cli();
    Ok(match command {
        KeyCommand::Create { tenant, label, scopes, days } => {
            let expires_ms = days.map(|days| now_ms() + i64::from(days) * crate::learn::traffic::DAY_MS);
            let new = NewKey { tenant, label, scopes, expires_ms };
            let (key, secret) = store.create_key(&new, &by).await?;
            Output::Made(key, secret)
        }
        KeyCommand::List { tenant } => {
            let mut keys = store.keys().await?;
            keys.retain(|key| tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant));
            Output::List(keys)
        }
        KeyCommand::Revoke { id } => Output::One(store.revoke_key(&id, Expected::Any, &by).await?),
        KeyCommand::Rotate { id, grace } => {
            let (key, secret) = store.rotate_key(&id, grace, Expected::Any, &by).await?;
            Output::Made(key, secret)
        }
    })
}

fn made_json(key: &ApiKey, secret: &KeySecret) -> Value {
    let mut value = key_json(key);
    value["key"] = json!(secret.reveal());
    value
}

fn list(keys: &[ApiKey], out: &mut impl Write) -> std::io::Result<()> {
    let now = now_ms();
    let cells = |key: &ApiKey| {
        let state = match () {
            () if key.is_good(now) => "good",
            () if key.revoked_ms.is_some() => "revoked",
            () => "expired",
        };
        [
            key.id.clone(),
            key.tenant.clone(),
            state.to_owned(),
            key.expires_ms.map_or("never".to_owned(), moment),
            key.last_used_ms.map_or("never".to_owned(), moment),
            key.scopes.to_string(),
            key.label.clone(),
        ]
    };
    let titles = ["id", "tenant", "state", "ends", "last used", "scopes", "label"];
    columns::write(titles.map(|title| (title, Side::Left)), keys.iter().map(cells), out)
}

/// Parses a duration with its unit. Returns milliseconds.
fn span_ms(text: &str) -> anyhow::Result<i64> {
    let want = || format!("`{text}` is no span of time: 30s, 15m, 24h or 7d");
    let unit_at = text.len().checked_sub(1).filter(|&at| text.is_char_boundary(at)).with_context(want)?;
    let (count, unit) = text.split_at(unit_at);
    let count: u32 = count.parse().with_context(want)?;
    let unit_ms = match unit {
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => bail!(want()),
    };
    Ok(i64::from(count) * unit_ms)
}

#[cfg(test)]
mod tests {
    use super::span_ms;

    #[test]
    fn spans_have_a_unit() {
        for (text, want) in
            [("0s", 0), ("30s", 30_000), ("15m", 900_000), ("24h", 86_400_000), ("7d", 604_800_000)]
        {
            assert_eq!(span_ms(text).unwrap(), want, "{text}");
        }
        for bad in ["", "5", "h", "-1h", "5 h", "5ü", "99999999999d"] {
            assert!(span_ms(bad).unwrap_err().to_string().contains("is no span of time"), "{bad}");
        }
    }
}
