//! The form of a scene's settings, made from the table of their fields.
//!
//! Never: names a setting itself, so that a new setting gets its field here without a change. Always: if a
//! form is refused, it shows what was typed and what is wrong with it.

use baton_protocol::{Bounded, NumberRange, SettingField, SettingGroup, SettingKind};
use baton_refine::Mode;
use html_escape::encode_quoted_attribute;
use serde_json::{Map, Value};

use super::{Choice, choices, number_text};
use crate::admin::chart::grouped;
use crate::admin::guard::Fields;
use crate::admin::problem::{Kind, Problem};
use crate::scene::{self, SceneSettings};

/// The fields of a form as texts, in the order of the table.
pub(super) struct SettingsForm(Vec<Typed>);

struct Typed {
    text: String,
    /// A number without a value, such as one that the optimizer chooses, whatever the text is.
    is_auto: bool,
}

/// Names that a form suggests.
pub(super) struct Suggested {
    pub(super) models: Vec<String>,
    pub(super) adapters: Vec<String>,
}

/// A group of fields in a form.
pub(super) struct Fieldset {
    pub(super) legend: &'static str,
    pub(super) flags: Vec<Input>,
    pub(super) inputs: Vec<Input>,
    /// The inputs are side by side.
    pub(super) in_row: bool,
    pub(super) holds_model: bool,
}

/// One field of a form.
pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: String,
    pub(super) may_be_auto: bool,
    /// The meaning of a setting without a value.
    pub(super) absent: &'static str,
    pub(super) is_auto: bool,
    pub(super) control: Control,
    /// HTML attributes that mark the field if it is wrong.
    pub(super) invalid: String,
    /// The error of the field as HTML; empty if there is none.
    pub(super) error: String,
}

/// The control of a field.
pub(super) enum Control {
    /// A text field with this number of lines.
    Text(u8),
    /// A number.
    Number(Numeric),
    /// One of a few values.
    Choice(Vec<Choice>),
    /// A name, with suggestions.
    Name(Names),
    /// Yes or no.
    Flag,
}

/// Attributes of a field for a number.
pub(super) struct Numeric {
    pub(super) min: String,
    pub(super) max: String,
    /// `min` and `max` as a text for people.
    pub(super) bounds: String,
    pub(super) step: &'static str,
    pub(super) inputmode: &'static str,
}

/// A field for a name.
pub(super) struct Names {
    pub(super) suggested: Vec<String>,
    /// The meaning of an empty name.
    pub(super) absent: &'static str,
}

impl SettingsForm {
    /// Makes the form of these settings.
    pub(super) fn of(settings: &SceneSettings) -> SettingsForm {
        let typed = |(_, value): (_, Value)| Typed {
            is_auto: value.is_null(),
            text: match value {
                Value::String(text) => text,
                Value::Number(number) => number_text(&number),
                Value::Bool(true) => YES.to_owned(),
                _ => String::new(),
            },
        };
        SettingsForm(settings.fields().map(typed).collect())
    }

    /// Reads a form that was sent.
    pub(super) fn read(fields: &Fields) -> SettingsForm {
        let typed = |field: &SettingField| Typed {
            text: match field.kind {
                // Blanks and line ends of texts are part of the value.
                SettingKind::Text { .. } => fields.get(field.name).unwrap_or_default(),
                _ => fields.text(field.name),
            },
            is_auto: is_auto(field, fields),
        };
        SettingsForm(SceneSettings::FIELDS.iter().map(typed).collect())
    }

    /// Returns the fields to show. `bad` is the name of the field that is wrong, and why.
    pub(super) fn fieldsets(
        &self,
        bad: Option<&(String, String)>,
        suggested: &Suggested,
    ) -> impl Iterator<Item = Fieldset> {
        SettingGroup::ALL.into_iter().map(move |group| {
            let fields = SceneSettings::FIELDS.iter().zip(&self.0);
            let own = fields.filter(|(field, _)| field.group == group);
            let inputs = own.map(|(field, typed)| typed.input(field, bad, suggested));
            let (flags, inputs): (Vec<Input>, Vec<Input>) =
                inputs.partition(|input| matches!(input.control, Control::Flag));
            Fieldset {
                legend: group.title(),
                in_row: inputs.iter().any(|input| !input.is_wide()),
                holds_model: group == SettingGroup::Model,
                flags,
                inputs,
            }
        })
    }
}

impl Typed {
    fn input(&self, field: &SettingField, bad: Option<&(String, String)>, suggested: &Suggested) -> Input {
        let absent = field.absent.map_or("", |absent| absent.meaning);
        let names = |suggested: &Vec<String>| Control::Name(Names { suggested: suggested.clone(), absent });
        Input {
            name: field.name,
            title: field.title,
            text: self.text.clone(),
            may_be_auto: field.may_be_automatic(),
            absent,
            is_auto: self.is_auto,
            control: match field.kind {
                SettingKind::Text { lines } => Control::Text(lines),
                SettingKind::Number(range) => Control::Number(numeric(range, "any", "decimal")),
                SettingKind::Whole(range) => Control::Number(numeric(range, "1", "numeric")),
                SettingKind::Flag => Control::Flag,
                SettingKind::Word(words) => {
                    let none = field.absent.map(|absent| absent.word);
                    let chosen = none.filter(|_| self.text.is_empty()).unwrap_or(&self.text);
                    Control::Choice(choices(none.iter().chain(words), chosen))
                }
                SettingKind::Mode => Control::Choice(choices(Mode::ALL, &self.text)),
                SettingKind::Model => names(&suggested.models),
                SettingKind::Adapter => names(&suggested.adapters),
            },
            invalid: invalid(bad, field.name),
            error: error(bad, field.name),
        }
    }
}

impl Input {
    /// Returns whether the field has a line of its own.
    fn is_wide(&self) -> bool {
        self.may_be_auto || matches!(self.control, Control::Text(_))
    }

    /// Returns whether a flag is set.
    pub(super) fn is_on(&self) -> bool {
        self.text == YES
    }
}

const YES: &str = "yes";

fn numeric(range: NumberRange, step: &'static str, inputmode: &'static str) -> Numeric {
    let bounds = format!("{} to {}", short(range.min), short(range.max));
    Numeric { min: range.min.to_string(), max: range.max.to_string(), bounds, step, inputmode }
}

/// Formats a limit for people, such as 0.01 or 65,536.
fn short(limit: f64) -> String {
    if limit.fract() == 0.0 { grouped(limit, 0) } else { limit.to_string() }
}

/// Returns the HTML attributes that mark a field if it is the wrong one.
pub(super) fn invalid(bad: Option<&(String, String)>, name: &str) -> String {
    match bad {
        Some((field, _)) if field == name => {
            format!(" aria-invalid=\"true\" aria-describedby=\"error-{name}\"")
        }
        _ => String::new(),
    }
}

/// Returns the error of a field as HTML if it is the wrong one.
pub(super) fn error(bad: Option<&(String, String)>, name: &str) -> String {
    match bad {
        Some((field, text)) if field == name => {
            format!("<p class=\"error\" id=\"error-{name}\">{}</p>", encode_quoted_attribute(text))
        }
        _ => String::new(),
    }
}

/// Reads and checks the settings of a form that was sent.
///
/// # Errors
/// A [`Problem`] that names the field that is out of its bounds.
pub(super) fn settings(fields: &Fields) -> Result<SceneSettings, Problem> {
    let mut values = Map::new();
    for field in SceneSettings::FIELDS {
        values.insert(field.name.to_owned(), value(field, fields)?);
    }
    let settings: SceneSettings = serde_json::from_value(Value::Object(values))
        .map_err(|err| Problem::new(Kind::Invalid, format!("the settings cannot be read: {err}")))?;
    scene::check(&settings).map_err(|err| Problem::of_scene(&err))?;
    Ok(settings)
}

/// Returns whether the form leaves a number without a value.
fn is_auto(field: &SettingField, fields: &Fields) -> bool {
    field.may_be_automatic() && fields.text(&format!("{}_mode", field.name)) != "manual"
}

fn value(field: &SettingField, fields: &Fields) -> Result<Value, Problem> {
    let name = field.name;
    let out = |err: &dyn std::fmt::Display| Problem::field(name, err);
    Ok(match field.kind {
        _ if is_auto(field, fields) => Value::Null,
        SettingKind::Text { .. } => fields.get(name).unwrap_or_default().into(),
        SettingKind::Flag => (fields.text(name) == YES).into(),
        SettingKind::Number(range) => {
            let number: f32 = fields.needed(name)?;
            range.check(name, number).map_err(|err| out(&err))?;
            number.shown().into()
        }
        SettingKind::Whole(_) => fields.needed::<u32>(name)?.into(),
        SettingKind::Word(words) => {
            let text = fields.text(name);
            if field.absent.is_some_and(|absent| text.is_empty() || absent.word == text) {
                return Ok(Value::Null);
            }
            if !words.contains(&text.as_str()) {
                return Err(out(&format!("field `{name}` is `{text}`, must be {}", words.join(" or "))));
            }
            text.into()
        }
        SettingKind::Mode => fields.text(name).into(),
        SettingKind::Model | SettingKind::Adapter => match fields.text(name) {
            text if text.is_empty() => Value::Null,
            text => text.into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let base = [
            ("ratio_mode", "manual"),
            ("ratio", " 0.5 "),
            ("assist_tokens_mode", "auto"),
            ("assist_tokens", "12"),
            ("xi", "0.25"),
            ("assist_floor", "4"),
            ("assist_max", "4096"),
            ("tau_ms", "100"),
            ("tolerance", "0.02"),
            ("refine", "yes"),
            ("mode", "attention"),
            ("corrector", "cloud"),
            ("verify", "off"),
            ("model", ""),
            ("adapter", " law "),
            ("system", "You answer. "),
            ("question_prefix", "\r\n\r\nQuestion: "),
        ];
        let kept = base.iter().filter(|(name, _)| pairs.iter().all(|(other, _)| other != name));
        Fields(kept.chain(pairs).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn a_form_becomes_settings() {
        let settings = settings(&fields(&[])).unwrap();
        // An L that was typed beside `automatic` is ignored; blanks of texts are kept.
        assert_eq!((settings.ratio, settings.assist_tokens), (Some(0.5), None));
        assert_eq!(settings.least_value, None);
        assert_eq!((settings.model, settings.adapter.as_deref()), (None, Some("law")));
        assert_eq!(
            (settings.system.as_str(), settings.question_prefix.as_str()),
            ("You answer. ", "\n\nQuestion: ")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let field = |pairs: &[(&str, &str)]| {
            settings(&fields(pairs)).unwrap_err().field_name().map(str::to_owned).unwrap()
        };
        assert_eq!(field(&[("ratio", "")]), "ratio");
        assert_eq!(field(&[("ratio", "0.1")]), "ratio");
        assert_eq!(field(&[("assist_tokens_mode", "manual"), ("assist_tokens", "1.5")]), "assist_tokens");
        assert_eq!(field(&[("tau_ms", "soon")]), "tau_ms");
        assert_eq!(field(&[("xi", "NaN")]), "xi");
        assert_eq!(field(&[("mode", "best")]), "mode");
        assert_eq!(field(&[("corrector", "both")]), "corrector");
        assert_eq!(field(&[("verify", "maybe")]), "verify");
        assert_eq!(field(&[("adapter", "a b")]), "adapter");
    }

    #[test]
    fn every_setting_has_one_field_with_what_it_is() {
        let settings = SceneSettings { ratio: Some(0.3), ..SceneSettings::with_system("s") };
        let suggested = Suggested { models: vec!["m".into()], adapters: Vec::new() };
        let bad = ("xi".to_owned(), "<too small>".to_owned());
        let fieldsets: Vec<Fieldset> =
            SettingsForm::of(&settings).fieldsets(Some(&bad), &suggested).collect();
        let inputs: Vec<&Input> =
            fieldsets.iter().flat_map(|set| set.flags.iter().chain(&set.inputs)).collect();
        assert_eq!(inputs.len(), SceneSettings::FIELDS.len());
        let input = |name: &str| *inputs.iter().find(|input| input.name == name).unwrap();
        assert_eq!((input("ratio").text.as_str(), input("ratio").is_auto), ("0.3", false));
        assert!(input("assist_tokens").is_auto && input("assist_tokens").text.is_empty());
        assert_eq!((input("tau_ms").text.as_str(), input("refine").is_on()), ("100", true));
        assert_eq!(input("xi").error, "<p class=\"error\" id=\"error-xi\">&lt;too small&gt;</p>");
        let Control::Number(numeric) = &input("assist_max").control else { panic!("a number") };
        assert_eq!((numeric.max.as_str(), numeric.bounds.as_str()), ("65536", "1 to 65,536"));
        let sent: Vec<(String, String)> =
            inputs.iter().map(|input| (input.name.to_owned(), input.text.clone())).collect();
        let manual = ("ratio_mode".to_owned(), "manual".to_owned());
        let sent = Fields(sent.into_iter().chain([manual]).collect());
        assert_eq!(super::settings(&sent).unwrap(), settings, "sent back as it was shown");
    }
}
