//! `tenants list|set`: manages tenants, their weights and limits.

use std::io::Write;
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::columns::{self, Side};
use super::{DatabaseArgs, UsageError, nothing_named};
use crate::access::{Actor, Tenant, TenantSettings};
use crate::config::numbers;
use crate::learn::traffic::DAY_MS;
use crate::store::{DayUsage, Expected, Store, StoreError, now_ms, tenant_json};

/// `tenants`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    baton-cloud tenants set acme --label \"Acme Ltd\" --requests-per-minute 600 --concurrency 20\n  \
    baton-cloud tenants set acme --weight 30 --tokens-per-day none\n  \
    baton-cloud tenants set acme --disabled true\n\n\
    A tenant's weight is its priority: tenants that wait share slots in proportion to their weights (default 10), so\n\
    none starves. Limits hold over all replicas, which exchange their counts through the database every 2 s.")]
pub struct TenantsCommand {
    /// What to do.
    #[command(subcommand)]
    pub command: TenantCommand,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// The commands of `tenants`.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// List every tenant, with its usage of today (UTC)
    List,
    /// Add a tenant, or change the settings that are named
    Set(TenantSet),
}

/// Changes to a tenant. Settings that are not named stay.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct TenantSet {
    /// The tenant's id
    pub id: String,
    /// Name of the tenant for people
    #[arg(long)]
    pub label: Option<String>,
    /// Share of slots if several tenants wait, 1 to 1000
    #[arg(long, value_parser = numbers::whole::<u32>, allow_negative_numbers = true)]
    pub weight: Option<u32>,
    /// Requests in a minute, or `none`
    #[arg(long, value_name = "N|none", allow_negative_numbers = true)]
    pub requests_per_minute: Option<Limit<u32>>,
    /// Requests at the same time, or `none`
    #[arg(long, value_name = "N|none", allow_negative_numbers = true)]
    pub concurrency: Option<Limit<u32>>,
    /// Prompt and answer tokens in a day (UTC), or `none`; the tokens that a request may use are set aside
    /// before it runs
    #[arg(long, value_name = "N|none", allow_negative_numbers = true)]
    pub tokens_per_day: Option<Limit<u64>>,
    /// Whether every request of the tenant is refused
    #[arg(long)]
    pub disabled: Option<bool>,
}

/// A limit, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit<T>(pub Option<T>);

impl<T: FromStr> FromStr for Limit<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit<T>, String> {
        let limit = || text.parse::<T>().map_err(|_| "it must be a whole number, or `none`".to_owned());
        if text == "none" { Ok(Limit(None)) } else { limit().map(|limit| Limit(Some(limit))) }
    }
}

impl TenantSet {
    /// Returns whether no change is named.
    fn is_empty(&self) -> bool {
        *self == TenantSet { id: self.id.clone(), ..TenantSet::default() }
    }

    fn apply(self, mut settings: TenantSettings) -> TenantSettings {
        fn put<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        put(&mut settings.label, self.label);
        put(&mut settings.weight, self.weight);
        put(&mut settings.requests_per_minute, self.requests_per_minute.map(|limit| limit.0));
        put(&mut settings.concurrency_max, self.concurrency.map(|limit| limit.0));
        put(&mut settings.tokens_per_day, self.tokens_per_day.map(|limit| limit.0));
        put(&mut settings.disabled, self.disabled);
        settings
    }
}

pub(super) async fn run(command: TenantsCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let perform = async |store: &Store| perform(store, command.command).await;
    let (tenants, usage) = command.database.with_store(perform).await?;
    let used = |tenant: &Tenant| usage.iter().find(|used| used.tenant == tenant.id);
    if command.database.json {
        let value: Value = tenants.iter().map(|tenant| json_of(tenant, used(tenant))).collect();
        return writeln!(out, "{value}").context("print");
    }
    print(&tenants, &usage, out).context("print")
}

async fn perform(store: &Store, command: TenantCommand) -> anyhow::Result<(Vec<Tenant>, Vec<DayUsage>)> {
    let today = now_ms() - now_ms().rem_euclid(DAY_MS);
    let tenants = match command {
        TenantCommand::List => store.tenants().await?,
        TenantCommand::Set(set) => {
            let (old, expected) = match store.tenant(&set.id).await {
                Ok(_) if set.is_empty() => return Err(nothing_named()),
                Ok(tenant) => (tenant.settings, Expected::Revision(tenant.revision)),
                Err(StoreError::Unknown { .. }) => (TenantSettings::default(), Expected::Absent),
                Err(err) => return Err(err.into()),
            };
            let id = set.id.clone();
            let settings = set.apply(old);
            settings.check().map_err(|err| UsageError(err.to_string()))?;
            vec![store.set_tenant(&id, &settings, expected, &Actor::cli()).await?]
        }
    };
    Ok((tenants, store.usage_of_day(today).await?))
}

fn json_of(tenant: &Tenant, used: Option<&DayUsage>) -> Value {
    let mut value = tenant_json(tenant);
    value["requests_today"] = json!(used.map_or(0, |used| used.requests));
    value["tokens_today"] = json!(used.map_or(0, |used| used.tokens));
    value
}

fn print(tenants: &[Tenant], usage: &[DayUsage], out: &mut impl Write) -> std::io::Result<()> {
    fn limit<T: ToString>(limit: Option<T>) -> String {
        limit.map_or("none".to_owned(), |limit| limit.to_string())
    }
    let columns = [
        ("tenant", Side::Left),
        ("weight", Side::Right),
        ("per min", Side::Right),
        ("concurrent", Side::Right),
        ("tokens/day", Side::Right),
        ("requests today", Side::Right),
        ("tokens today", Side::Right),
        ("state", Side::Left),
        ("label", Side::Left),
    ];
    let cells = |tenant: &Tenant| {
        let settings = &tenant.settings;
        let used = usage.iter().find(|used| used.tenant == tenant.id);
        let state = if settings.disabled { "disabled" } else { "good" };
        [
            tenant.id.clone(),
            settings.weight.to_string(),
            limit(settings.requests_per_minute),
            limit(settings.concurrency_max),
            limit(settings.tokens_per_day),
            used.map_or(0, |used| used.requests).to_string(),
            used.map_or(0, |used| used.tokens).to_string(),
            state.to_owned(),
            settings.label.clone(),
        ]
    };
    columns::write(columns, tenants.iter().map(cells), out)
}
