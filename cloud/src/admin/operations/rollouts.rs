//! Which models devices have: targets and rollouts.

use baton_protocol::ModelPair;
use baton_registry::rollout::{Change, GRACE_S, Guard, Share};

use super::AdminService;
use crate::access::Actor;
use crate::admin::problem::Problem;
use crate::admin::view::rollout::{GivenUp, RolloutAction, RolloutChange, RolloutView};
use crate::fleet::catalog::Catalog;
use crate::fleet::{ModelReports, ModelTarget};
use crate::store::{Expected, now_ms};

impl AdminService {
    /// Returns every target.
    pub(in crate::admin) async fn rollouts(&self) -> Result<Vec<RolloutView>, Problem> {
        let mut views = Vec::new();
        for target in self.store.model_targets().await? {
            views.push(self.rollout_view(target).await?);
        }
        Ok(views)
    }

    /// Returns the target of a scene and a class.
    pub(in crate::admin) async fn rollout(&self, scene: &str, class: &str) -> Result<RolloutView, Problem> {
        self.rollout_view(self.store.model_target(scene, class).await?).await
    }

    /// Sets the first pair of a scene and a class.
    pub(in crate::admin) async fn set_rollout(
        &self,
        by: &Actor,
        of: (&str, &str),
        pair: &str,
        catalog: &Catalog,
    ) -> Result<RolloutView, Problem> {
        let pair = known_pair(pair, catalog)?;
        self.rollout_view(self.store.set_model_target(of, &pair, by).await?).await
    }

    /// Changes a target.
    pub(in crate::admin) async fn change_rollout(
        &self,
        by: &Actor,
        of: (&str, &str),
        change: &RolloutChange,
        expected: Expected,
        catalog: &Catalog,
    ) -> Result<RolloutView, Problem> {
        let change = checked(change, catalog)?;
        self.rollout_view(self.store.change_model_target(of, &change, expected, by).await?).await
    }

    /// Removes a target.
    pub(in crate::admin) async fn remove_rollout(
        &self,
        by: &Actor,
        of: (&str, &str),
        expected: Expected,
    ) -> Result<(), Problem> {
        Ok(self.store.remove_model_target(of, expected, by).await?)
    }

    async fn rollout_view(&self, row: ModelTarget) -> Result<RolloutView, Problem> {
        let reports = self.store.model_reports(&row.scene, &row.class, now_ms()).await?;
        Ok(view(row, reports))
    }
}

/// Reads a pair, which the registry must have.
fn known_pair(text: &str, catalog: &Catalog) -> Result<ModelPair, Problem> {
    let pair: ModelPair = text.parse().map_err(|err| Problem::field("pair", &err))?;
    catalog.check(&pair).map_err(|err| Problem::field("pair", &err))?;
    Ok(pair)
}

/// Returns the change, if it has what its action needs.
fn checked(change: &RolloutChange, catalog: &Catalog) -> Result<Change, Problem> {
    let RolloutChange { action, pair, percent, failed_max_percent, failed_least } = change;
    let pair = || pair.as_deref().ok_or_else(|| Problem::field("pair", &"this action needs a pair"));
    let share = |field: &str, percent: Option<f64>| -> Result<Option<Share>, Problem> {
        let read = |percent: f64| percent.to_string().parse().map_err(|err| Problem::field(field, &err));
        percent.map(read).transpose()
    };
    let needed = || {
        let missing = || Problem::field("percent", &"this action needs a share of the devices");
        share("percent", *percent)?.ok_or_else(missing)
    };
    Ok(match action {
        RolloutAction::Start => {
            let usual = Guard::default();
            let failed_max = share("failed_max_percent", *failed_max_percent)?.unwrap_or(usual.failed_max);
            let failed_least = failed_least.unwrap_or(usual.failed_least);
            let candidate = known_pair(pair()?, catalog)?;
            Change::Start { candidate, share: needed()?, guard: Guard { failed_max, failed_least } }
        }
        RolloutAction::Share => Change::Share { share: needed()? },
        RolloutAction::Pause => Change::Pause,
        RolloutAction::Resume => Change::Resume,
        RolloutAction::RollBack => Change::RollBack,
        RolloutAction::Finish => Change::Finish,
        RolloutAction::Revoke => {
            Change::Revoke { pair: pair()?.parse().map_err(|err| Problem::field("pair", &err))? }
        }
    })
}

fn view(row: ModelTarget, reports: ModelReports) -> RolloutView {
    let rollout = row.target.rollout.as_ref();
    let given_up = row.target.retired.iter().map(|retired| GivenUp {
        pair: retired.pair.to_string(),
        allowed_until_ms: i64::try_from(retired.at_s.saturating_add(GRACE_S)).unwrap_or(i64::MAX) * 1000,
    });
    RolloutView {
        stable: row.target.stable.to_string(),
        last_good: row.target.last_good.as_ref().map(ToString::to_string),
        candidate: rollout.map(|rollout| rollout.candidate.to_string()),
        percent: rollout.map(|rollout| rollout.share.percent()),
        paused: rollout.is_some_and(|rollout| rollout.is_paused),
        paused_by_guard: rollout.is_some_and(|rollout| rollout.paused_by_guard),
        given_up: given_up.filter(|given_up| given_up.allowed_until_ms > now_ms()).collect(),
        devices: reports.active.into_iter().collect(),
        failed: reports.failed.into_iter().collect(),
        scene: row.scene,
        class: row.class,
        revision: row.revision,
        updated_ms: row.updated_ms,
        updated_by: row.updated_by,
    }
}
