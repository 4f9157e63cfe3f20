//! Lays out a conversation; system texts that the template refuses are moved to where it takes them.

use serde_json::{Map, Value};

use crate::template::text::{Origin, Text};
use crate::template::{ChatTemplate, Entry, TemplateError};

/// What stands between texts that share a message.
const BETWEEN: &str = "\n\n";

/// Lays out the messages as they are. If the template refuses them or leaves a system text out, the system
/// texts are sent in the first system message. If it has no system role, they are sent in the first message
/// of the user.
///
/// # Errors
/// Of the messages as they are, if nothing else helps.
pub(super) fn lay_out(
    template: &ChatTemplate,
    entries: Vec<Entry<'_>>,
    tools: &[Value],
    variables: Option<&Map<String, Value>>,
) -> Result<Text, TemplateError> {
    let given = template.lay_out(&entries, tools, variables);
    let is_whole = |text: &Text| system_texts(&entries).all(|index| is_in(text, index));
    match &given {
        Ok(text) if is_whole(text) => return given,
        Ok(_) | Err(TemplateError::Raised { .. } | TemplateError::Failed { .. }) => {}
        Err(_) => return given,
    }
    for moved in [in_first_system(&entries), in_first_user(&entries)].into_iter().flatten() {
        match template.lay_out(&moved, tools, variables) {
            Ok(text) if is_whole(&text) => return Ok(text),
            _ => {}
        }
    }
    given
}

fn is_system(entry: &Entry<'_>) -> bool {
    matches!(entry.role, "system" | "developer")
}

/// The indices of the system texts that are more than white space.
fn system_texts<'e>(entries: &'e [Entry<'_>]) -> impl Iterator<Item = usize> + 'e {
    let pieces = entries.iter().filter(|entry| is_system(entry)).flat_map(|entry| &entry.content);
    pieces.filter(|(_, text)| !super::is_blank(text)).filter_map(|(index, _)| *index)
}

fn is_in(text: &Text, wanted: usize) -> bool {
    text.runs().any(|(_, origin)| matches!(origin, Origin::Input(Some(source)) if source.index == wanted))
}

/// Returns the content of all system messages, and the other messages.
fn taken_apart<'t>(entries: &[Entry<'t>]) -> (Vec<(Option<usize>, &'t str)>, Vec<Entry<'t>>) {
    let mut system = Vec::new();
    let mut others: Vec<Entry<'t>> = Vec::new();
    let mut is_behind_system = false;
    for entry in entries {
        if is_system(entry) {
            append(&mut system, &entry.content);
            is_behind_system = true;
            continue;
        }
        match others.last_mut() {
            // Two messages of the user that a system text parted.
            Some(last) if is_behind_system && entry.role == "user" && last.role == "user" => {
                append(&mut last.content, &entry.content);
            }
            _ => others.push(entry.clone()),
        }
        is_behind_system = false;
    }
    (system, others)
}

fn append<'t>(content: &mut Vec<(Option<usize>, &'t str)>, more: &[(Option<usize>, &'t str)]) {
    if !content.is_empty() && !more.is_empty() {
        content.push((None, BETWEEN));
    }
    content.extend_from_slice(more);
}

/// Returns the messages with all system texts in one message at the beginning, if that changes anything.
fn in_first_system<'t>(entries: &[Entry<'t>]) -> Option<Vec<Entry<'t>>> {
    entries.iter().skip(1).find(|entry| is_system(entry))?;
    let (content, mut others) = taken_apart(entries);
    others.insert(0, Entry { role: "system", content, fields: None });
    Some(others)
}

/// Returns the messages with all system texts at the beginning of the user's first message.
fn in_first_user<'t>(entries: &[Entry<'t>]) -> Option<Vec<Entry<'t>>> {
    entries.iter().find(|entry| is_system(entry))?;
    let (mut content, mut others) = taken_apart(entries);
    let user = others.iter_mut().find(|entry| entry.role == "user")?;
    append(&mut content, &user.content);
    user.content = content;
    Some(others)
}
