//! The table of fields (`fields.json`), replayed against both real programs: each row is taken and named as
//! it says, or refused by the field's name.

use baton_e2e::process::{CloudProcess, models_folder};
use serde_json::{Map, Value};

use super::{KEY, agent};

/// One of the programs, and the key under which rows have what is otherwise there.
#[derive(Debug)]
struct Program {
    name: &'static str,
    url: String,
}

/// What a program said of a row.
#[derive(Debug)]
struct Reply {
    status: u16,
    named: Vec<String>,
    text: String,
}

impl Program {
    async fn post(&self, path: &str, body: &Value) -> Reply {
        let request =
            baton_e2e::http::client().post(format!("{}{path}", self.url)).bearer_auth(KEY).json(body);
        let reply = request.send().await.expect("the program replies");
        let names = reply.headers().get("x-baton-ignored").and_then(|value| value.to_str().ok());
        let named = names.into_iter().flat_map(|names| names.split(", ")).map(str::to_owned).collect();
        let status = reply.status().as_u16();
        Reply { status, named, text: reply.text().await.expect("the reply ends") }
    }

    /// Asks for a row, and compares the reply with what the row says.
    async fn check(&self, table: &Value, row: &Value) {
        let dialect = &table["dialects"][row["in"].as_str().expect("a dialect")];
        let mut body = dialect["body"].clone();
        let fields = body.as_object_mut().expect("an object");
        fields.extend(row["send"].as_object().expect("an object").clone());
        let reply = self.post(dialect["path"].as_str().expect("a path"), &body).await;
        let otherwise = row.get(self.name).and_then(Value::as_object);
        let want = otherwise.or(row.as_object()).expect("an object");
        let place = format!("{row} by {}: {reply:?}", self.name);
        match want.get("refused").and_then(Value::as_str) {
            Some(field) => {
                assert_eq!(reply.status, 400, "{place}");
                assert!(reply.text.contains(&format!("`{field}`")), "{place}");
            }
            None => {
                assert_eq!((reply.status, reply.named), (200, named(want)), "{place}");
                let json: Value = serde_json::from_str(&reply.text).expect("a reply is JSON");
                let told = json["baton"]["ignored"].as_array().into_iter().flatten();
                let told: Vec<&str> = told.filter_map(Value::as_str).collect();
                assert_eq!(told, named(want), "{row} by {}: {json}", self.name);
            }
        }
    }
}

/// Returns the names that a row says.
fn named(want: &Map<String, Value>) -> Vec<String> {
    let names = want.get("named").and_then(Value::as_array).into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_field_is_taken_and_named_or_refused() {
    let table: Value = serde_json::from_str(include_str!("fields.json")).expect("the table is JSON");
    let folder = tempfile::tempdir().expect("make a folder");
    let agent = agent(&folder).await;
    let model = models_folder().join("demo-device.gguf");
    let cloud = CloudProcess::start(&model, &["--api-key".into(), KEY.into()]).await;
    let cloud = cloud.expect("the service starts");
    let device = Program { name: "device", url: agent.url().to_owned() };
    let cloud = Program { name: "cloud", url: format!("http://{}", cloud.address()) };
    let mut count = 0;
    for row in table["rows"].as_array().expect("a list") {
        if row["replay"] == false {
            continue;
        }
        device.check(&table, row).await;
        count += 1;
        if table["dialects"][row["in"].as_str().expect("a dialect")]["of"] == "both" {
            cloud.check(&table, row).await;
            count += 1;
        }
    }
    assert!(count >= 200, "{count} requests");
    println!("ok {count} requests of the table of fields");
}

/// Curl sends a body as a form unless it is told otherwise, and what Ollama does with models has an answer.
#[tokio::test]
async fn what_curl_sends_to_ollama_has_an_answer() {
    let folder = tempfile::tempdir().expect("make a folder");
    let agent = agent(&folder).await;
    let send = async |method: reqwest::Method, path: &str, body: &str, user_agent: &str| {
        let request = baton_e2e::http::client().request(method, format!("{}{path}", agent.url()));
        let request = request.bearer_auth(KEY).header("user-agent", user_agent);
        let request =
            request.header("content-type", "application/x-www-form-urlencoded").body(body.to_owned());
        let reply = request.send().await.expect("the program replies");
        (reply.status().as_u16(), reply.text().await.expect("the reply ends"))
    };
    let ask = r#"{"model":"baton","prompt":"Say hi.","stream":false,"options":{"num_predict":2}}"#;
    let post = reqwest::Method::POST;
    assert_eq!(send(post.clone(), "/api/generate", ask, "curl/8.5.0").await.0, 200);
    assert_eq!(send(post.clone(), "/api/generate", ask, "Mozilla/5.0").await.0, 415);
    for (path, words) in
        [("/api/create", "model import"), ("/api/copy", "one name"), ("/api/push", "published")]
    {
        let (status, text) = send(post.clone(), path, "{}", "curl/8.5.0").await;
        let error: Value = serde_json::from_str(&text).expect("JSON");
        assert!(
            status == 400 && error["error"].as_str().is_some_and(|why| why.contains(words)),
            "{path}: {text}"
        );
    }
    let delete = reqwest::Method::DELETE;
    let (status, text) = send(delete.clone(), "/api/delete", r#"{"model":"baton"}"#, "curl/8.5.0").await;
    assert!(status == 400 && text.contains("is served now"), "{text}");
    let (status, text) = send(delete, "/api/delete", r#"{"model":"nobody"}"#, "curl/8.5.0").await;
    assert!(status == 404 && text.contains("nobody"), "{text}");
}
