//! The form that a request demands of its answer: JSON, a schema, or calls of tools.

use std::time::{Duration, Instant};

use baton_protocol::{AnswerFormat, Markup, Tool, ToolUse};
use serde_json::{Value, json};

use crate::{Constraint, ConstraintError, Grammar, Grammars, tools};

/// How long to search for the tool whose schema cannot be followed. After that, the error names no tool.
const BLAME_MAX: Duration = Duration::from_millis(200);

/// An answer of fewer tokens has no room for a thought beside its form.
const ROOM_TOKENS_MIN: usize = 256;

/// Why no answer can have the form that a request demands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{err}")]
pub struct FormError {
    /// The field of the request.
    pub field: String,
    /// The cause.
    pub err: ConstraintError,
}

/// Returns how many tokens may be thinking in an answer of at most `answer_tokens` that has a form.
pub fn thought_tokens(answer_tokens: usize) -> usize {
    if answer_tokens < ROOM_TOKENS_MIN { 0 } else { answer_tokens / 2 }
}

/// Compiles the form that the answer must have; returns `None` if it may be any text. `markup` is how the
/// model writes calls. `thought_tokens` is the most tokens of the thinking that the prompt has opened; the
/// form begins behind it. `grammars` is called only if there is something to compile.
///
/// # Errors
/// [`FormError`] with the field whose form cannot be followed.
pub fn constraint<'a>(
    grammars: impl Fn() -> Result<&'a Grammars, ConstraintError>,
    markup: Markup,
    tools: Option<&ToolUse>,
    format: &AnswerFormat,
    thought_tokens: Option<usize>,
) -> Result<Option<Constraint>, FormError> {
    // A text that is free up to a call has room for any thought.
    let thought_tokens = thought_tokens.filter(|_| !tools::is_free(tools, format));
    let compile = |field: &str, grammar: &Grammar| {
        let compiled = grammars().and_then(|grammars| grammars.compile(grammar, thought_tokens));
        compiled.map_err(|err| FormError { field: field.to_owned(), err })
    };
    if let Some(tools) = tools {
        return of_tools(markup, tools, format, compile);
    }
    let field = match format {
        AnswerFormat::Text => return Ok(None),
        AnswerFormat::JsonObject => "response_format",
        AnswerFormat::JsonSchema(_) => "response_format.json_schema.schema",
    };
    compile(field, &Grammar::Json(schema(format))).map(Some)
}

/// Returns the schema of an answer in this format, which is not any text.
pub(crate) fn schema(format: &AnswerFormat) -> Value {
    match format {
        AnswerFormat::JsonSchema(schema) => schema.clone(),
        AnswerFormat::Text | AnswerFormat::JsonObject => json!({ "type": "object" }),
    }
}

fn of_tools(
    markup: Markup,
    tools: &ToolUse,
    format: &AnswerFormat,
    compile: impl Fn(&str, &Grammar) -> Result<Constraint, FormError>,
) -> Result<Option<Constraint>, FormError> {
    let grammar = tools::grammar(markup, tools, format);
    let grammar = grammar.map_err(|err| FormError { field: "tools".to_owned(), err })?;
    let Some(grammar) = grammar else { return Ok(None) };
    let whole = compile("tools", &grammar);
    if whole.as_ref().is_err_and(|fault| !matches!(fault.err, ConstraintError::TooLong { .. })) {
        let begun = Instant::now();
        blame(&tools.tools, || begun.elapsed() >= BLAME_MAX, compile)?;
    }
    whole.map(Some)
}

/// Compiles each schema alone to find the wrong one, until the time is over. Fails with the error of that
/// schema.
fn blame<T>(
    tools: &[Tool],
    over: impl Fn() -> bool,
    compile: impl Fn(&str, &Grammar) -> Result<T, FormError>,
) -> Result<(), FormError> {
    for (at, tool) in tools.iter().enumerate() {
        if over() {
            break;
        }
        let field = format!("tools[{at}].function.parameters");
        compile(&field, &Grammar::Json(tool.parameters.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns how many of 128 schemas are compiled, and whether the wrong one, the last, is found.
    fn blamed(over_after: usize) -> (usize, bool) {
        let tool = |at: usize| Tool {
            name: format!("t{at}"),
            description: None,
            parameters: json!({ "type": "object", "title": at }),
            strict: true,
        };
        let tools: Vec<Tool> = (0..128).map(tool).collect();
        let compiled = Cell::new(0);
        let done = blame(
            &tools,
            || compiled.get() >= over_after,
            |field, _| {
                compiled.set(compiled.get() + 1);
                if field != "tools[127].function.parameters" {
                    return Ok(());
                }
                Err(FormError { field: field.to_owned(), err: ConstraintError::NotASchema })
            },
        );
        (compiled.get(), done.is_err())
    }

    #[test]
    fn the_tool_to_blame_is_looked_for_within_a_time() {
        assert_eq!(blamed(usize::MAX), (128, true));
        assert_eq!(blamed(3), (3, false));
    }
}
