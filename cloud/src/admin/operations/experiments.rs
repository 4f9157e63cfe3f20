//! Operations on experiments, for the console, its API and the command line.

use super::AdminService;
use crate::access::Actor;
use crate::admin::problem::{Kind, Problem};
use crate::admin::view::{ExperimentPage, ExperimentView};
use crate::experiment::plan::{Experiment, Plan};
use crate::experiment::report;
use crate::store::Expected;

impl AdminService {
    /// Returns every experiment, the newest first.
    pub(crate) async fn experiments(&self) -> Result<Vec<ExperimentView>, Problem> {
        Ok(self.store.experiments().await?.into_iter().map(view).collect())
    }

    /// Returns an experiment, with the comparison of its arms.
    pub(crate) async fn experiment(&self, id: &str) -> Result<ExperimentPage, Problem> {
        let experiment = self.store.experiment(id).await?;
        let sums = self.store.experiment_sums(id).await?;
        let report = report::report(&experiment, &sums);
        Ok(ExperimentPage { experiment: view(experiment), report })
    }

    /// Writes the plan of a new experiment, or of a draft.
    pub(crate) async fn save_experiment(
        &self,
        by: &Actor,
        id: &str,
        plan: &Plan,
        expected: Expected,
    ) -> Result<ExperimentView, Problem> {
        Ok(view(self.store.save_experiment(id, plan, expected, by).await?))
    }

    pub(crate) async fn start_experiment(
        &self,
        by: &Actor,
        id: &str,
        expected: Expected,
    ) -> Result<ExperimentView, Problem> {
        Ok(view(self.store.start_experiment(id, expected, by).await?))
    }

    pub(crate) async fn stop_experiment(
        &self,
        by: &Actor,
        id: &str,
        note: &str,
        expected: Expected,
    ) -> Result<ExperimentView, Problem> {
        Ok(view(self.store.stop_experiment(id, note, expected, by).await?))
    }

    /// Publishes the settings of an arm as a version of its scene, and ends the experiment. An arm that was
    /// stopped is refused.
    pub(crate) async fn promote_experiment(
        &self,
        by: &Actor,
        id: &str,
        arm: &str,
        note: &str,
        expected: Expected,
    ) -> Result<ExperimentView, Problem> {
        let current = self.store.experiment(id).await?;
        if current.is_stopped(arm) {
            let why = format!("arm `{arm}` of experiment `{id}` was stopped, so it cannot be promoted");
            return Err(Problem::new(Kind::Conflict, why));
        }
        Ok(view(self.store.promote_experiment(id, arm, note, expected, by).await?))
    }
}

fn view(experiment: Experiment) -> ExperimentView {
    let Experiment { id, revision, plan, state, stopped_arms, promoted, created_ms, updated_ms, updated_by } =
        experiment;
    ExperimentView { id, revision, state, plan, stopped_arms, promoted, created_ms, updated_ms, updated_by }
}
