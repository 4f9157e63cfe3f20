//! Pages for people who open the service's address in a browser: what this is, and how to use its API.
//!
//! Never: shows models, callers or settings, which may need a key; uses a script or anything from another
//! host. Always: the description is made from the OpenAPI document itself.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

use crate::admin::secure;

const STYLE: &str = include_str!("../../assets/console.css");
const ICON: &str = include_str!("../../assets/icon.svg");

#[derive(Template)]
#[template(path = "landing.html")]
struct LandingPage {
    /// Whether the console is at this address too.
    console: bool,
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage {
    title: String,
    description: Vec<String>,
    groups: Vec<Group>,
    schemas: Vec<Schema>,
}

/// Operations under one tag.
struct Group {
    name: String,
    description: String,
    operations: Vec<Operation>,
}

struct Operation {
    method: String,
    path: String,
    summary: String,
    description: Vec<String>,
    needs_key: bool,
    parameters: Vec<Field>,
    body: Option<Kind>,
    replies: Vec<Reply>,
}

struct Reply {
    status: String,
    description: String,
    kinds: Vec<Kind>,
}

/// A parameter, or a field of an object.
struct Field {
    name: String,
    /// Place of the parameter, e.g. `path`; empty for fields.
    place: String,
    kind: Kind,
    required: bool,
    description: String,
}

struct Schema {
    name: String,
    description: String,
    fields: Vec<Field>,
    kind: Kind,
}

/// The type of a value: words, and names of schemas that are described below on the page.
struct Kind(Vec<Word>);

enum Word {
    Plain(String),
    Schema(String),
}

/// Returns the routes of the pages. `document` is the OpenAPI document; `console` says whether the console is
/// at this address too.
///
/// # Panics
/// If a page cannot be rendered, which would be our bug.
pub fn routes(document: &Value, console: bool) -> Router {
    let landing = LandingPage { console }.render().expect("a page without data is rendered");
    let docs = docs(document).render().expect("texts are rendered");
    let text = |kind: &'static str, text: &'static str| {
        move || async move { ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response() }
    };
    Router::new()
        .route("/", get(move || async move { page(landing) }))
        .route("/docs", get(move || async move { page(docs) }))
        .route("/docs/style.css", get(text("text/css; charset=utf-8", STYLE)))
        .route("/docs/icon.svg", get(text("image/svg+xml", ICON)))
        .layer(axum::middleware::map_response(|mut response: Response| async move {
            secure(response.headers_mut());
            response
        }))
}

fn page(html: String) -> Response {
    (StatusCode::OK, Html(html)).into_response()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Splits a description into paragraphs.
fn paragraphs(value: &Value) -> Vec<String> {
    let text = text(value);
    text.split("\n\n").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn docs(document: &Value) -> DocsPage {
    let mut groups: Vec<Group> = Vec::new();
    for tag in document["tags"].as_array().into_iter().flatten() {
        let (name, description) = (text(&tag["name"]), text(&tag["description"]));
        groups.push(Group { name, description, operations: Vec::new() });
    }
    let empty = serde_json::Map::new();
    for (path, methods) in document["paths"].as_object().unwrap_or(&empty) {
        for (method, operation) in methods.as_object().unwrap_or(&empty) {
            let tag = text(&operation["tags"][0]);
            if !groups.iter().any(|group| group.name == tag) {
                groups.push(Group { name: tag.clone(), description: String::new(), operations: Vec::new() });
            }
            let group = groups.iter_mut().find(|group| group.name == tag).expect("it was put in");
            group.operations.push(read_operation(method, path, operation));
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap_or(&empty);
    DocsPage {
        title: text(&document["info"]["title"]),
        description: paragraphs(&document["info"]["description"]),
        groups,
        schemas: schemas.iter().map(|(name, schema)| read_schema(name, schema)).collect(),
    }
}

fn read_operation(method: &str, path: &str, operation: &Value) -> Operation {
    let parameter = |value: &Value| Field {
        name: text(&value["name"]),
        place: text(&value["in"]),
        kind: kind(&value["schema"]),
        required: value["required"] == true,
        description: text(&value["description"]),
    };
    let kinds = |content: &Value| -> Vec<Kind> {
        let kinds = content.as_object().into_iter().flatten();
        kinds.map(|(media, content)| of_media(media, &content["schema"])).collect()
    };
    let replies: BTreeMap<&String, &Value> =
        operation["responses"].as_object().into_iter().flatten().collect();
    let reply = |(status, reply): (&String, &Value)| Reply {
        status: status.clone(),
        description: text(&reply["description"]),
        kinds: kinds(&reply["content"]),
    };
    Operation {
        method: method.to_ascii_uppercase(),
        path: path.to_owned(),
        summary: text(&operation["summary"]),
        description: paragraphs(&operation["description"]),
        needs_key: operation["security"]
            .as_array()
            .is_some_and(|needs| needs.iter().any(|need| need.get("key").is_some())),
        parameters: operation["parameters"].as_array().into_iter().flatten().map(parameter).collect(),
        body: kinds(&operation["requestBody"]["content"]).into_iter().next(),
        replies: replies.into_iter().map(reply).collect(),
    }
}

fn read_schema(name: &str, schema: &Value) -> Schema {
    let required = |field: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == field))
    };
    let field = |(name, value): (&String, &Value)| Field {
        name: name.clone(),
        place: String::new(),
        kind: kind(value),
        required: required(name),
        description: text(&value["description"]),
    };
    Schema {
        name: name.to_owned(),
        description: text(&schema["description"]),
        fields: schema["properties"].as_object().into_iter().flatten().map(field).collect(),
        kind: kind(schema),
    }
}

/// Returns the type of a body of this media type.
fn of_media(media: &str, schema: &Value) -> Kind {
    let mut words = vec![Word::Plain(format!("{media}: "))];
    words.extend(kind(schema).0);
    Kind(words)
}

/// Returns the type of a value that a schema describes.
fn kind(schema: &Value) -> Kind {
    let mut words = Vec::new();
    write_kind(schema, &mut words, 0);
    Kind(words)
}

/// The most levels of nested schemas that are shown.
const DEPTH_MAX: usize = 8;

fn write_kind(schema: &Value, words: &mut Vec<Word>, depth: usize) {
    let plain = |text: &str| Word::Plain(text.to_owned());
    if depth > DEPTH_MAX {
        return words.push(plain("…"));
    }
    if let Some(reference) = schema["$ref"].as_str() {
        return words.push(Word::Schema(reference.rsplit('/').next().unwrap_or_default().to_owned()));
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if let Some(kinds) = schema[several].as_array() {
            for (at, one) in kinds.iter().enumerate() {
                if at > 0 {
                    words.push(plain(if several == "allOf" { " and " } else { " or " }));
                }
                write_kind(one, words, depth + 1);
            }
            return;
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return words.push(plain(&values.join(" or ")));
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["anything"],
    };
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            words.push(plain(" or "));
        }
        words.push(plain(name));
        if *name == "array" {
            words.push(plain(" of "));
            write_kind(&schema["items"], words, depth + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(schema: &Value) -> String {
        let word = |word: Word| match word {
            Word::Plain(text) => text,
            Word::Schema(name) => format!("<{name}>"),
        };
        kind(schema).0.into_iter().map(word).collect()
    }

    #[test]
    fn kinds_are_told_in_words() {
        let check = |schema: Value, want: &str| assert_eq!(shown(&schema), want, "{schema}");
        check(json!({ "type": "string" }), "string");
        check(json!({ "type": ["integer", "null"] }), "integer or null");
        check(json!({ "type": "array", "items": { "$ref": "#/components/schemas/A" } }), "array of <A>");
        check(json!({ "oneOf": [{ "type": "null" }, { "$ref": "#/x/B" }] }), "null or <B>");
        check(json!({ "type": "string", "enum": ["a", "b"] }), "\"a\" or \"b\"");
        check(json!({}), "anything");
    }

    #[test]
    fn every_operation_and_schema_of_the_api_is_described() {
        let document = crate::api::description();
        let html = docs(&document).render().unwrap();
        let mut operations = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let id = format!("{}-{path}", method.to_ascii_uppercase());
                assert!(html.contains(&format!("id=\"{id}\"")), "{id}");
                operations += 1;
            }
        }
        assert!(operations >= 9, "{operations}");
        for schema in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(html.contains(&format!("id=\"{schema}\"")), "{schema}");
        }
        // Each link within the page has its target.
        for link in html.split("href=\"#").skip(1) {
            let name = link.split('"').next().unwrap();
            assert!(html.contains(&format!("id=\"{name}\"")), "{name}");
        }
        for never in ["<script", "style=", "http:", "https:", "panicked"] {
            assert!(!html.contains(never), "{never}");
        }
    }
}
