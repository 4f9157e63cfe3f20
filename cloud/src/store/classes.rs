//! Device classes and tenants.

use serde_json::{Value, json};

use super::change::{Expected, Fields, Recorded, fields};
use super::db::{Arg, Row, Statement, args};
use super::{Store, StoreError, sql};
use crate::access::{Actor, ClassCost, DeviceClass, DeviceClassSettings, Tenant, TenantSettings, check_name};

impl Store {
    /// Returns every device class, by id.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn device_classes(&self) -> Result<Vec<DeviceClass>, StoreError> {
        self.all(&sql::CLASSES).await
    }

    /// Returns one device class.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such class, or as for [`Store::device_classes`].
    pub async fn device_class(&self, id: &str) -> Result<DeviceClass, StoreError> {
        self.one(id).await
    }

    /// Adds or changes a device class.
    ///
    /// # Errors
    /// [`StoreError::Access`] if a value is out of its bounds; [`StoreError::Conflict`] if the class is at
    /// another revision; [`StoreError::Query`] if the database does not answer.
    pub async fn set_device_class(
        &self,
        id: &str,
        settings: &DeviceClassSettings,
        expected: Expected,
        by: &Actor,
    ) -> Result<DeviceClass, StoreError> {
        check_name(DeviceClass::NAME, id)?;
        settings.check()?;
        let mut change = self.change(by).await?;
        let old: Option<DeviceClass> = change.find(id, expected).await?;
        let new = DeviceClass {
            id: id.to_owned(),
            revision: old.as_ref().map_or(0, DeviceClass::revision) + 1,
            settings: settings.clone(),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        change.put("set", old.as_ref(), new, json!({})).await
    }

    /// Removes a device class. From then on, the costs that its devices report are used.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such class, or as for [`Store::set_device_class`].
    pub async fn remove_device_class(
        &self,
        id: &str,
        expected: Expected,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let mut change = self.change(by).await?;
        let old: DeviceClass = change.known(id, expected).await?;
        change.tx.execute(&sql::CLASS_REMOVE, args![id]).await?;
        change.record::<DeviceClass>("remove", id, (Some(old.fields()), None), json!({})).await
    }

    /// Returns every tenant, by id.
    ///
    /// # Errors
    /// [`StoreError::Query`] if the database does not answer.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.all(&sql::TENANTS).await
    }

    /// Returns one tenant.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if there is no such tenant, or as for [`Store::tenants`].
    pub async fn tenant(&self, id: &str) -> Result<Tenant, StoreError> {
        self.one(id).await
    }

    /// Adds or changes a tenant. Tenants cannot be removed, because their usage and keys stay, but they can
    /// be disabled.
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
        check_name(Tenant::NAME, id)?;
        settings.check()?;
        let mut change = self.change(by).await?;
        let old: Option<Tenant> = change.find(id, expected).await?;
        let new = Tenant {
            id: id.to_owned(),
            revision: old.as_ref().map_or(0, Tenant::revision) + 1,
            settings: settings.clone(),
            created_ms: old.as_ref().map_or(change.at_ms, |tenant| tenant.created_ms),
            updated_ms: change.at_ms,
            updated_by: change.by.clone(),
        };
        change.put("set", old.as_ref(), new, json!({})).await
    }
}

impl Recorded for DeviceClass {
    const NAME: &'static str = "device class";
    const KIND: &'static str = "class";
    const READ: &'static Statement = &sql::CLASS;
    const ADD: &'static Statement = &sql::CLASS_ADD;
    const CHANGE: &'static Statement = &sql::CLASS_CHANGE;

    fn read(row: &Row) -> Result<DeviceClass, StoreError> {
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

    fn id(&self) -> &str {
        &self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn added(&self) -> Vec<Arg<'_>> {
        let cost = self.settings.cost;
        vec![
            (&self.id).into(),
            self.revision.into(),
            (&self.settings.label).into(),
            cost.map(|cost| cost.prefill_ms_per_token).into(),
            cost.map(|cost| cost.prefill_ms_per_token2).into(),
            cost.map(|cost| cost.decode_ms).into(),
            self.updated_ms.into(),
            (&self.updated_by).into(),
        ]
    }

    fn fields(&self) -> Fields {
        let cost = self.settings.cost;
        fields(json!({
            "label": self.settings.label,
            "prefill_ms_per_token": cost.map(|cost| cost.prefill_ms_per_token),
            "prefill_ms_per_token2": cost.map(|cost| cost.prefill_ms_per_token2),
            "decode_ms": cost.map(|cost| cost.decode_ms),
        }))
    }
}

impl Recorded for Tenant {
    const NAME: &'static str = "tenant";
    const KIND: &'static str = "tenant";
    const READ: &'static Statement = &sql::TENANT;
    const ADD: &'static Statement = &sql::TENANT_ADD;
    const CHANGE: &'static Statement = &sql::TENANT_CHANGE;

    fn read(row: &Row) -> Result<Tenant, StoreError> {
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

    fn id(&self) -> &str {
        &self.id
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn added(&self) -> Vec<Arg<'_>> {
        let settings = &self.settings;
        let tokens_per_day = settings.tokens_per_day.map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        vec![
            (&self.id).into(),
            self.revision.into(),
            (&settings.label).into(),
            settings.weight.into(),
            settings.requests_per_minute.into(),
            settings.concurrency_max.into(),
            tokens_per_day.into(),
            settings.disabled.into(),
            self.created_ms.into(),
            self.updated_ms.into(),
            (&self.updated_by).into(),
        ]
    }

    fn fields(&self) -> Fields {
        let settings = &self.settings;
        fields(json!({
            "label": settings.label,
            "weight": settings.weight,
            "requests_per_minute": settings.requests_per_minute,
            "concurrency_max": settings.concurrency_max,
            "tokens_per_day": settings.tokens_per_day,
            "disabled": settings.disabled,
        }))
    }
}

/// Returns a tenant as the command line prints it.
#[must_use]
pub fn tenant_json(tenant: &Tenant) -> Value {
    let mut json = Value::Object(tenant.fields());
    json["id"] = json!(tenant.id);
    json["revision"] = json!(tenant.revision);
    json
}
