//! OpenAI's Responses API: requests as the one request of all dialects, replies, streams of named events.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | the fields of a request, as clients send them |
//! | `request`, `tools` | the request, checked and translated |
//! | [`reply`] | the fields of a reply |
//! | `writer` | the answer, in one piece and as events |
//!
//! Always: nothing is kept between two requests, so each has its whole conversation in `input`. What would
//! need something that is kept is refused by name.

pub mod reply;
mod request;
mod tools;
pub mod wire;
mod writer;

pub use self::request::read_responses;

/// Returns the name that a field of the translated request has in a request of this API.
fn field(name: &str) -> String {
    match name {
        "max_tokens" => return "max_output_tokens".to_owned(),
        "response_format" => return "text.format".to_owned(),
        "response_format.type" => return "text.format.type".to_owned(),
        "tool_choice.function.name" | "tool_choice.function" => return "tool_choice.name".to_owned(),
        "tool_choice.allowed_tools" => return "tool_choice.tools".to_owned(),
        "tool_choice.allowed_tools.mode" => return "tool_choice.mode".to_owned(),
        "response_format.schema" => return "text.format.schema".to_owned(),
        _ => (),
    }
    if let Some(rest) = name.strip_prefix("response_format.json_schema") {
        return format!("text.format{rest}");
    }
    if let Some(rest) = name.strip_prefix("messages").filter(|rest| rest.is_empty() || rest.starts_with('['))
    {
        return format!("input{rest}");
    }
    match name.starts_with("tools[") {
        true => name.replace(".function", ""),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
