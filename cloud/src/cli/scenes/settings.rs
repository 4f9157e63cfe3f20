//! Command line options for the settings of a scene, made from the table of their fields.
//!
//! Never: names a setting itself, so that a new setting gets its option here without a change. Always: a
//! value that was accepted has the type and range of its setting.

use baton_protocol::{Bounded, NumberRange, SettingField, SettingKind};
use baton_refine::{Mode, UnknownMode};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;

use crate::config::numbers;
use crate::scene::SceneSettings;

/// The settings that were named, with their new values.
#[derive(Debug, Clone)]
pub struct SettingOptions(Vec<(&'static SettingField, Value)>);

impl SettingOptions {
    /// Returns whether no setting was named.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns settings with these values changed.
    ///
    /// # Errors
    /// If a value does not have the type of its setting, which does not happen with values that clap
    /// accepted.
    pub(super) fn apply(self, settings: &SceneSettings) -> serde_json::Result<SceneSettings> {
        settings.with(self.0)
    }
}

impl FromArgMatches for SettingOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingOptions, clap::Error> {
        let named =
            |field: &'static SettingField| Some((field, matches.get_one::<Value>(field.name)?.clone()));
        Ok(SettingOptions(SceneSettings::FIELDS.iter().filter_map(named).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SettingOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SettingOptions {
    fn augment_args(command: Command) -> Command {
        SceneSettings::FIELDS.iter().fold(command, |command, field| command.arg(option(field)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingOptions::augment_args(command)
    }
}

fn option(field: &'static SettingField) -> Arg {
    let is_number = matches!(field.kind, SettingKind::Number(_) | SettingKind::Whole(_));
    Arg::new(field.name)
        .long(field.name.replace('_', "-"))
        .value_name(value_name(field))
        .help(help(field))
        .allow_negative_numbers(is_number)
        .value_parser(parser(field))
}

fn value_name(field: &SettingField) -> String {
    let name = match field.kind {
        SettingKind::Model | SettingKind::Adapter => "NAME".to_owned(),
        _ => field.name.to_uppercase(),
    };
    field.absent.map_or(name.clone(), |absent| format!("{name}|{}", absent.word))
}

fn help(field: &SettingField) -> String {
    let words = words(field.kind).map_or(String::new(), |words| format!(": {}", words.join(" or ")));
    let absent = field.absent.map_or(String::new(), |absent| format!(", or `{}`", absent.word));
    format!("{}{words}{absent}", field.help)
}

/// Returns the words that a setting takes, if it takes no other values.
fn words(kind: SettingKind) -> Option<Vec<&'static str>> {
    match kind {
        SettingKind::Word(words) => Some(words.to_vec()),
        SettingKind::Mode => Some(Mode::ALL.map(Mode::as_str).to_vec()),
        SettingKind::Flag => Some(vec!["true", "false"]),
        _ => None,
    }
}

fn parser(
    field: &'static SettingField,
) -> impl Fn(&str) -> Result<Value, String> + Clone + Send + Sync + 'static {
    move |text| value(field, text)
}

fn value(field: &SettingField, text: &str) -> Result<Value, String> {
    if field.absent.is_some_and(|absent| absent.word == text) {
        return Ok(Value::Null);
    }
    let number = |err: String| match field.absent {
        Some(absent) => format!("{err}, or `{}`", absent.word),
        None => err,
    };
    match field.kind {
        SettingKind::Number(range) => {
            let value: f32 = numbers::number(text).map_err(number)?;
            in_range(field, range, value).map(|()| value.shown().into())
        }
        SettingKind::Whole(range) => {
            let value: u32 = numbers::whole(text).map_err(number)?;
            in_range(field, range, value).map(|()| value.into())
        }
        SettingKind::Mode => {
            let mode: Mode = text.parse().map_err(|err: UnknownMode| err.to_string())?;
            Ok(mode.as_str().into())
        }
        SettingKind::Flag => text.parse().map(Value::Bool).map_err(|_| "it must be `true` or `false`".into()),
        SettingKind::Word(words) if !words.contains(&text) => {
            Err(format!("it must be `{}`", words.join("` or `")))
        }
        SettingKind::Word(_) | SettingKind::Text { .. } | SettingKind::Model | SettingKind::Adapter => {
            Ok(text.into())
        }
    }
}

fn in_range<N: Bounded>(field: &SettingField, range: NumberRange, value: N) -> Result<(), String> {
    range.check(field.name, value).map_err(|err| err.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses these words as `scenes set` does.
    fn taken(words: &[&str]) -> Result<SceneSettings, String> {
        let command = SettingOptions::augment_args(Command::new("set").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|err| err.to_string())?;
        let options = SettingOptions::from_arg_matches(&matches).map_err(|err| err.to_string())?;
        assert_eq!(options.is_empty(), words.is_empty());
        Ok(options.apply(&SceneSettings::default()).unwrap())
    }

    #[test]
    fn named_settings_change_and_others_stay() {
        assert_eq!(taken(&[]), Ok(SceneSettings::default()));
        let words = ["--ratio", "0.3", "--assist-tokens", "24", "--corrector", "device", "--refine", "false"];
        let changed = taken(&words).unwrap();
        assert_eq!((changed.ratio, changed.assist_tokens, changed.refine), (Some(0.3), Some(24), false));
        assert_eq!((changed.corrector.as_str(), changed.xi), ("device", 0.25));
        assert_eq!(taken(&["--ratio", "auto", "--model", "default"]), Ok(SceneSettings::default()));
        assert_eq!(taken(&["--adapter", "law"]).unwrap().adapter.as_deref(), Some("law"));
    }

    #[test]
    fn a_value_that_is_none_is_told_what_one_is() {
        let check = |words: &[&str], want: &str| {
            let err = taken(words).unwrap_err();
            assert!(err.contains(want), "{err}");
        };
        check(&["--ratio", "half"], "it must be a number, or `auto`");
        check(&["--assist-tokens", "1.5"], "it must be a whole number, 0 or more, or `auto`");
        check(&["--xi", "-1"], "field `xi` is -1, must be 0.01 to 1");
        check(&["--xi", "NaN"], "field `xi` is NaN, must be 0.01 to 1");
        check(&["--assist-tokens", "0"], "field `assist_tokens` is 0, must be 1 to 65536");
        check(&["--corrector", "both"], "it must be `cloud` or `device`");
        check(&["--refine", "yes"], "it must be `true` or `false`");
        check(&["--mode", "best"], "unknown refiner mode `best`");
        check(&["--colour", "red"], "unexpected argument '--colour'");
    }

    #[test]
    fn every_option_has_a_help() {
        let help = SettingOptions::augment_args(Command::new("set")).render_long_help().to_string();
        for field in SceneSettings::FIELDS {
            assert!(help.contains(&format!("--{} <", field.name.replace('_', "-"))), "{help}");
        }
        assert!(help.contains("cloud or device") && help.contains(", or `auto`"), "{help}");
    }
}
