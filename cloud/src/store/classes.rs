//! Device classes and tenants: rows that change, with a revision each.

use serde_json::{Value, json};

use super::change::Expected;
use super::db::{Row, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, ClassCost, DeviceClassSettings, Tenant, TenantSettings, check_name};

const CLASS: &str = "device class";
const TENANT: &str = "tenant";

/// A device class as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClass {
    /// Its name in requests.
    pub id: String,
    /// One more at every change.
    pub revision: u64,
    /// What it is called and costs.
    pub settings: DeviceClassSettings,
    /// When it was last changed, in milliseconds since 1970.
    pub updated_ms: i64,
    /// By whom.
    pub updated_by: String,
}

impl Store {
    /// Every device class, by id.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn device_classes(&self) -> Result<Vec<DeviceClass>, StoreError> {
        self.pool.rows(&sql::CLASSES, args![]).await?.iter().map(class).collect()
    }

    /// One device class.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::device_classes`].
    pub async fn device_class(&self, id: &str) -> Result<DeviceClass, StoreError> {
        let row = self.pool.row(&sql::CLASS, args![id]).await?;
        row.as_ref().map(class).transpose()?.ok_or_else(|| unknown(CLASS, id))
    }

    /// Adds or changes a device class.
    ///
    /// # Errors
    /// [`StoreError::Access`] where a value is out of its bounds; [`StoreError::Conflict`] where the class is at
    /// another revision; [`StoreError::Query`] where the database does not answer.
    pub async fn set_device_class(
        &self,
        id: &str,
        settings: &DeviceClassSettings,
        expected: Expected,
        by: &Actor,
    ) -> Result<DeviceClass, StoreError> {
        check_name(CLASS, id)?;
        settings.check()?;
        let mut change = self.change(by, true).await?;
        let row = change.tx.row(&sql::CLASS, args![id]).await?;
        let old = row.as_ref().map(class).transpose()?;
        expected.check(CLASS, id, old.as_ref().map(|class| class.revision))?;
        let new = DeviceClass {
            id: id.to_owned(),
            revision: old.as_ref().map_or(0, |class| class.revision) + 1,
            settings: settings.clone(),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        let cost = settings.cost;
        let values = args![
            id,
            new.revision,
            &settings.label,
            cost.map(|cost| cost.prefill_ms_per_token),
            cost.map(|cost| cost.prefill_ms_per_token2),
            cost.map(|cost| cost.decode_ms),
            new.updated_ms,
            &new.updated_by
        ];
        let statement = if old.is_some() { &sql::CLASS_CHANGE } else { &sql::CLASS_ADD };
        change.tx.execute(statement, values).await?;
        let detail =
            json!({ "from": old.map(|class| class_json(&class.settings)), "to": class_json(settings) });
        change.log("class.set", &format!("class/{id}"), &detail).await?;
        change.commit().await?;
        Ok(new)
    }

    /// Removes a device class: what its devices report counts from now on.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::set_device_class`].
    pub async fn remove_device_class(
        &self,
        id: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let mut change = self.change(by, true).await?;
        let row = change.tx.row(&sql::CLASS, args![id]).await?;
        let old = row.as_ref().map(class).transpose()?.ok_or_else(|| unknown(CLASS, id))?;
        expected.check(CLASS, id, Some(old.revision))?;
        change.tx.execute(&sql::CLASS_REMOVE, args![id]).await?;
        let detail = json!({ "from": class_json(&old.settings) });
        change.log("class.remove", &format!("class/{id}"), &detail).await?;
        change.commit().await
    }

    /// Every tenant, by id.
    ///
    /// # Errors
    /// [`StoreError::Query`] where the database does not answer.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.pool.rows(&sql::TENANTS, args![]).await?.iter().map(tenant).collect()
    }

    /// One tenant.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], or as for [`Store::tenants`].
    pub async fn tenant(&self, id: &str) -> Result<Tenant, StoreError> {
        let row = self.pool.row(&sql::TENANT, args![id]).await?;
        row.as_ref().map(tenant).transpose()?.ok_or_else(|| unknown(TENANT, id))
    }

    /// Adds or changes a tenant. Tenants are never removed (their usage and keys stay); they are disabled.
    ///
    /// # Errors
    /// As for [`Store::set_device_class`].
    pub async fn set_tenant(
        &self,
        id: &str,
        settings: &TenantSettings,
        expected: Expected,
        by: &Actor,
    ) -> Result<Tenant, StoreError> {
        check_name(TENANT, id)?;
        settings.check()?;
        let mut change = self.change(by, true).await?;
        let row = change.tx.row(&sql::TENANT, args![id]).await?;
        let old = row.as_ref().map(tenant).transpose()?;
        expected.check(TENANT, id, old.as_ref().map(|tenant| tenant.revision))?;
        let new = Tenant {
            id: id.to_owned(),
            revision: old.as_ref().map_or(0, |tenant| tenant.revision) + 1,
            settings: settings.clone(),
            created_ms: old.as_ref().map_or(change.at_ms, |tenant| tenant.created_ms),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        let tokens_per_day = settings.tokens_per_day.map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        let values = args![
            id,
            new.revision,
            &settings.label,
            settings.weight,
            settings.requests_per_minute,
            settings.concurrency_max,
            tokens_per_day,
            settings.disabled,
            new.created_ms,
            new.updated_ms,
            &new.updated_by
        ];
        let statement = if old.is_some() { &sql::TENANT_CHANGE } else { &sql::TENANT_ADD };
        change.tx.execute(statement, values).await?;
        let detail =
            json!({ "from": old.map(|tenant| tenant_json(&tenant.settings)), "to": tenant_json(settings) });
        change.log("tenant.set", &format!("tenant/{id}"), &detail).await?;
        change.commit().await?;
        Ok(new)
    }
}

fn unknown(what: &'static str, id: &str) -> StoreError {
    StoreError::Unknown { what, id: id.chars().take(64).collect() }
}

/// A class's settings as the API and the audit log have them.
#[must_use]
pub fn class_json(settings: &DeviceClassSettings) -> Value {
    json!({
        "label": settings.label,
        "cost": settings.cost.map(|cost| json!({
            "prefill_ms_per_token": cost.prefill_ms_per_token,
            "prefill_ms_per_token2": cost.prefill_ms_per_token2,
            "decode_ms": cost.decode_ms,
        })),
    })
}

/// A tenant's settings as the API and the audit log have them.
#[must_use]
pub fn tenant_json(settings: &TenantSettings) -> Value {
    json!({
        "label": settings.label,
        "weight": settings.weight,
        "requests_per_minute": settings.requests_per_minute,
        "concurrency_max": settings.concurrency_max,
        "tokens_per_day": settings.tokens_per_day,
        "disabled": settings.disabled,
    })
}

pub(super) fn class(row: &Row) -> Result<DeviceClass, StoreError> {
    let figures = (
        row.opt_real("prefill_ms_per_token")?,
        row.opt_real("prefill_ms_per_token2")?,
        row.opt_real("decode_ms")?,
    );
    let cost = match figures {
        (Some(prefill_ms_per_token), Some(prefill_ms_per_token2), Some(decode_ms)) => {
            Some(ClassCost { prefill_ms_per_token, prefill_ms_per_token2, decode_ms })
        }
        _ => None,
    };
    let settings = DeviceClassSettings { label: row.text("label")?, cost };
    settings.check()?;
    Ok(DeviceClass {
        id: row.text("id")?,
        revision: row.count("revision")?,
        settings,
        updated_ms: row.int("updated_ms")?,
        updated_by: row.text("updated_by")?,
    })
}

pub(super) fn tenant(row: &Row) -> Result<Tenant, StoreError> {
    let tokens_per_day = row
        .opt_int("tokens_per_day")?
        .map(|tokens| u64::try_from(tokens).map_err(|_| row.bad("tokens_per_day", tokens.to_string())));
    let settings = TenantSettings {
        label: row.text("label")?,
        weight: row.small("weight")?,
        requests_per_minute: row.opt_small("requests_per_minute")?,
        concurrency_max: row.opt_small("concurrency_max")?,
        tokens_per_day: tokens_per_day.transpose()?,
        disabled: row.flag("disabled")?,
    };
    settings.check()?;
    Ok(Tenant {
        id: row.text("id")?,
        revision: row.count("revision")?,
        settings,
        created_ms: row.int("created_ms")?,
        updated_ms: row.int("updated_ms")?,
        updated_by: row.text("updated_by")?,
    })
}
