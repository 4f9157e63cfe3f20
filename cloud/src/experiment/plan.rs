//! What an operator writes: the arms of an experiment, its goal and its guard rails.
//!
//! Always: a checked plan has a control without overrides and arms that fit the scene's settings.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::metric::{Metric, Scale};
use crate::scene::{self, SceneError, SceneSettings, check_id};

/// The most arms of an experiment. Each further arm widens all intervals.
pub const ARMS_MAX: usize = 8;
/// The largest weight of an arm.
pub const WEIGHT_MAX: u32 = 10_000;
/// The settings that an arm may have in place of the scene's. The others decide what the question means, or
/// are bounds that an experiment must keep.
pub const OVERRIDABLE: [&str; 5] = ["ratio", "assist_tokens", "mode", "model", "adapter"];

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name, as an id of a scene is one.
    pub name: String,
    /// Its share of the devices is its weight over the sum of all weights.
    pub weight: u32,
    /// Values of settings in place of the scene's, by name: `ratio`, `assist_tokens`, `mode`, `model`,
    /// `adapter`. Null means automatic, or none. The first arm is the control and has no overrides.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub overrides: Map<String, Value>,
}

/// A limit of harm: an arm that is shown to be worse than this is stopped by the program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// What is watched.
    pub metric: Metric,
    /// The worst change that is allowed. For times it is a share of the control's mean: 0.1 allows 10 %
    /// more. For shares it is a difference: 0.02 allows 2 points.
    pub worst: f64,
}

/// The plan of an experiment. It changes only in a draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The scene whose requests take part.
    pub scene: String,
    /// The metric that decides which arm wins.
    #[serde(default = "default_goal")]
    pub goal: Metric,
    /// The arms, the control first.
    pub arms: Vec<Arm>,
    /// Guard rails.
    #[serde(default)]
    pub guards: Vec<Guard>,
}

fn default_goal() -> Metric {
    Metric::TtftMs
}

/// The state of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Can be changed; no request takes part.
    Draft,
    /// Requests take part.
    Running,
    /// Over; the scene is as before.
    Stopped,
    /// Over; the settings of an arm were published as a version of the scene.
    Promoted,
}

impl State {
    /// Returns its name in the API and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Draft => "draft",
            State::Running => "running",
            State::Stopped => "stopped",
            State::Promoted => "promoted",
        }
    }
}

/// Text that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no state `{0}`")]
pub struct UnknownState(String);

impl std::str::FromStr for State {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<State, UnknownState> {
        let all = [State::Draft, State::Running, State::Stopped, State::Promoted];
        let found = all.into_iter().find(|state| state.as_str() == name);
        found.ok_or_else(|| UnknownState(name.chars().take(40).collect()))
    }
}

/// An arm that does not take part any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoppedArm {
    /// Its name.
    pub name: String,
    /// Why it was stopped.
    pub reason: String,
}

/// An experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its id. It is also the salt of the assignment, so assignments of two experiments are independent.
    pub id: String,
    /// Grows by one with every change.
    pub revision: u64,
    /// The plan.
    pub plan: Plan,
    /// Its state.
    pub state: State,
    /// Arms that were stopped. Their devices get the control's settings and are not counted any more.
    pub stopped_arms: Vec<StoppedArm>,
    /// The arm that was promoted.
    pub promoted: Option<String>,
    /// When it was written first, in milliseconds since 1970.
    pub created_ms: i64,
    /// When it was changed last, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed it last.
    pub updated_by: String,
}

impl Experiment {
    /// Returns whether the arm of this name was stopped.
    #[must_use]
    pub fn is_stopped(&self, arm: &str) -> bool {
        self.stopped_arms.iter().any(|stopped| stopped.name == arm)
    }
}

/// A plan that is not valid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many arms.
    #[error("field `arms` has {0} arms, must have 2 to {ARMS_MAX}")]
    Arms(usize),
    /// The name of an arm or the scene cannot be an id.
    #[error("field `{field}`: `{name}` must be 1 to {max} letters, digits, `-` or `_`", max = scene::ID_BYTES_MAX)]
    Name {
        /// Which field.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// Two arms have one name.
    #[error("field `arms`: two arms are named `{0}`")]
    SameName(String),
    /// A weight is out of its range.
    #[error("field `arms`: the weight of `{arm}` is {weight}, must be 1 to {WEIGHT_MAX}")]
    Weight {
        /// The arm.
        arm: String,
        /// Its weight.
        weight: u32,
    },
    /// The first arm changes something.
    #[error("field `arms`: the first arm `{0}` is the control and must have no overrides")]
    Control(String),
    /// Another arm changes nothing.
    #[error("field `arms`: arm `{0}` needs an override, only the first arm has none")]
    NoOverrides(String),
    /// The setting is not one that an arm may change.
    #[error("field `arms`: arm `{arm}` overrides `{field}`, must be one of: {}", OVERRIDABLE.join(", "))]
    NotOverridable {
        /// The arm.
        arm: String,
        /// The setting.
        field: String,
    },
    /// A value has another type than its setting.
    #[error("field `arms`: arm `{arm}`: {why}")]
    Value {
        /// The arm.
        arm: String,
        /// What is wrong.
        why: String,
    },
    /// The arm's settings are out of the scene's bounds.
    #[error("field `arms`: arm `{arm}`: {err}")]
    Settings {
        /// The arm.
        arm: String,
        /// Which setting, and its limit.
        #[source]
        err: SceneError,
    },
    /// Two guard rails watch one metric.
    #[error("field `guards`: `{}` is watched twice", .0.as_str())]
    SameGuard(Metric),
    /// A line that is no guard rail.
    #[error("field `guards`: `{line}`: {why}")]
    GuardText {
        /// The line, cut.
        line: String,
        /// What is wrong.
        why: String,
    },
    /// The limit of a guard rail is out of its range.
    #[error("field `guards`: `worst` of `{}` is {worst}, must be 0 to {max}", metric.as_str())]
    Guard {
        /// The metric.
        metric: Metric,
        /// The limit.
        worst: f64,
        /// The largest limit.
        max: f64,
    },
}

impl PlanError {
    /// Returns the name of the field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            PlanError::Name { field, .. } => field,
            PlanError::SameGuard(_) | PlanError::GuardText { .. } | PlanError::Guard { .. } => "guards",
            _ => "arms",
        }
    }
}

impl Arm {
    /// Returns the scene's settings with this arm's overrides.
    ///
    /// # Errors
    /// [`PlanError`] if an override is none, or the result is out of bounds.
    pub fn settings(&self, scene: &SceneSettings) -> Result<SceneSettings, PlanError> {
        let arm = || self.name.clone();
        let mut changes = Vec::with_capacity(self.overrides.len());
        for (name, value) in &self.overrides {
            let field = SceneSettings::field(name).filter(|field| OVERRIDABLE.contains(&field.name));
            let field = field.ok_or_else(|| PlanError::NotOverridable {
                arm: arm(),
                field: name.chars().take(40).collect(),
            })?;
            changes.push((field, value.clone()));
        }
        let settings = scene.with(changes);
        let settings = settings.map_err(|err| PlanError::Value { arm: arm(), why: err.to_string() })?;
        scene::check(&settings).map_err(|err| PlanError::Settings { arm: arm(), err })?;
        Ok(settings)
    }
}

impl Plan {
    /// Checks everything that does not depend on the scene's settings.
    ///
    /// # Errors
    /// [`PlanError`] for the first field that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        if !(2..=ARMS_MAX).contains(&self.arms.len()) {
            return Err(PlanError::Arms(self.arms.len()));
        }
        let named = |field, name: &str| {
            let short = || name.chars().take(scene::ID_BYTES_MAX).collect();
            check_id(name).map_err(|_| PlanError::Name { field, name: short() })
        };
        named("scene", &self.scene)?;
        let mut names = BTreeSet::new();
        for (at, arm) in self.arms.iter().enumerate() {
            named("arms", &arm.name)?;
            if !names.insert(&arm.name) {
                return Err(PlanError::SameName(arm.name.clone()));
            }
            if !(1..=WEIGHT_MAX).contains(&arm.weight) {
                return Err(PlanError::Weight { arm: arm.name.clone(), weight: arm.weight });
            }
            match (at, arm.overrides.is_empty()) {
                (0, false) => return Err(PlanError::Control(arm.name.clone())),
                (1.., true) => return Err(PlanError::NoOverrides(arm.name.clone())),
                _ => (),
            }
        }
        self.check_guards()
    }

    fn check_guards(&self) -> Result<(), PlanError> {
        let mut watched = BTreeSet::new();
        for &Guard { metric, worst } in &self.guards {
            let max = if metric.scale() == Scale::Time { 10.0 } else { 1.0 };
            if !(0.0..=max).contains(&worst) {
                return Err(PlanError::Guard { metric, worst, max });
            }
            if !watched.insert(metric) {
                return Err(PlanError::SameGuard(metric));
            }
        }
        Ok(())
    }

    /// Checks the plan, and each arm against the settings of its scene.
    ///
    /// # Errors
    /// [`PlanError`] for the first field that is wrong.
    pub fn check_for(&self, scene: &SceneSettings) -> Result<(), PlanError> {
        self.check()?;
        self.arms.iter().try_for_each(|arm| arm.settings(scene).map(drop))
    }

    /// Returns the arm of this name.
    #[must_use]
    pub fn arm(&self, name: &str) -> Option<&Arm> {
        self.arms.iter().find(|arm| arm.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(change: impl FnOnce(&mut Plan)) -> Plan {
        let arm = |name: &str, overrides: Value| Arm {
            name: name.to_owned(),
            weight: 1,
            overrides: overrides.as_object().cloned().unwrap_or_default(),
        };
        let mut plan = Plan {
            scene: "doc-qa".to_owned(),
            goal: Metric::TtftMs,
            arms: vec![arm("control", json!({})), arm("short", json!({ "assist_tokens": 8 }))],
            guards: vec![Guard { metric: Metric::Failures, worst: 0.02 }],
        };
        change(&mut plan);
        plan
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Plan), want: &str) {
        let have = plan(change).check_for(&SceneSettings::default());
        assert_eq!(have.map_err(|err| err.to_string()).err().unwrap_or_default(), want);
    }

    #[test]
    fn a_plan_is_valid_or_says_what_is_wrong() {
        check(|_| (), "");
        check(|plan| plan.arms.truncate(1), "field `arms` has 1 arms, must have 2 to 8");
        check(
            |plan| plan.scene = "a b".into(),
            "field `scene`: `a b` must be 1 to 64 letters, digits, `-` or `_`",
        );
        check(|plan| plan.arms[1].name = "control".into(), "field `arms`: two arms are named `control`");
        check(|plan| plan.arms[1].weight = 0, "field `arms`: the weight of `short` is 0, must be 1 to 10000");
        check(
            |plan| plan.arms.swap(0, 1),
            "field `arms`: the first arm `short` is the control and must have no overrides",
        );
        check(
            |plan| plan.arms[1].overrides.clear(),
            "field `arms`: arm `short` needs an override, only the first arm has none",
        );
        check(
            |plan| drop(plan.arms[1].overrides.insert("xi".into(), json!(0.1))),
            "field `arms`: arm `short` overrides `xi`, must be one of: ratio, assist_tokens, mode, model, adapter",
        );
        check(
            |plan| drop(plan.arms[1].overrides.insert("ratio".into(), json!(0.1))),
            "field `arms`: arm `short`: ratio 0.1 must be at least xi 0.25",
        );
        check(|plan| plan.guards.push(plan.guards[0]), "field `guards`: `failures` is watched twice");
        check(
            |plan| plan.guards[0].worst = f64::NAN,
            "field `guards`: `worst` of `failures` is NaN, must be 0 to 1",
        );
    }

    #[test]
    fn a_value_of_another_type_is_refused() {
        let plan = plan(|plan| drop(plan.arms[1].overrides.insert("ratio".into(), json!("half"))));
        let err = plan.check_for(&SceneSettings::default()).unwrap_err();
        assert!(matches!(&err, PlanError::Value { arm, .. } if arm == "short"), "{err}");
        assert_eq!(err.field(), "arms");
    }

    #[test]
    fn an_arm_changes_only_what_it_overrides() {
        let scene = SceneSettings { ratio: Some(0.5), ..SceneSettings::with_system("s") };
        let arm = Arm {
            name: "auto".into(),
            weight: 1,
            overrides: json!({ "ratio": null, "mode": "bm25" }).as_object().cloned().unwrap(),
        };
        let want = SceneSettings { ratio: None, mode: "bm25".into(), ..scene.clone() };
        assert_eq!(arm.settings(&scene), Ok(want));
    }
}
