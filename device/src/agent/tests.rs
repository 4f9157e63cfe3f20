//! Tests the agent against a scripted cloud on loopback, with a model of random weights.

mod cancel;
mod evidence;
mod fake;
mod receipt;
mod ring;
mod route;

use super::*;
use crate::local::LocalOptions;
use crate::local::tests::model;
use crate::local::tests::watched::watched;
use crate::worker::EngineWorker;
use baton_engine::pace_emulation::PassCost;
use baton_engine::{Engine, EngineOptions};
use baton_protocol::{Markup, PastCall, Role, Tool, ToolChoice};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

pub(crate) use fake::FakeCloud;

/// Makes a response of server-sent events: these texts as tokens, and an end.
pub(crate) fn stream(texts: &[&str]) -> String {
    let mut body =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    for (index, text) in texts.iter().enumerate() {
        let text = serde_json::to_string(text).unwrap();
        body.push_str(&match index {
            0 => format!(
                "event: first\ndata: {{\"protocol\":1,\"scene_version\":1,\"index\":0,\"id\":1,\"text\":{text},\
                 \"assist_tokens\":{},\"assist_bound_by\":\"tau\",\"tau_ms\":100}}\n\n",
                texts.len()
            ),
            _ => format!("event: token\ndata: {{\"index\":{index},\"id\":1,\"text\":{text}}}\n\n"),
        });
    }
    let n = texts.len();
    body.push_str(&format!(
        "event: end\ndata: {{\"reason\":\"stop\",\"usage\":{{\"completion_tokens\":{n}}}}}\n\n"
    ));
    body
}

pub(crate) fn agent(cloud: Option<&str>) -> Agent {
    agent_of(cloud, 1)
}

/// Makes an agent whose device computes so many answers at the same time.
fn agent_of(cloud: Option<&str>, answers: usize) -> Agent {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let engine = Engine::new(model(), options).unwrap();
    // The device is slowed down: on a busy machine a model this small would be ready before the cloud's reply
    // is read.
    let slow = PassCost { base_ms: 400.0, ..PassCost::default() };
    let local = LocalOptions { emulation: slow, answers, ..LocalOptions::new(1024) };
    let worker = EngineWorker::start(engine, local).unwrap();
    let cloud = cloud.map(|url| CloudClient::new(url, None).unwrap());
    Agent::new(Some(DeviceModel::new(worker, model())), model().tokenizer().clone(), cloud, "test")
}

pub(crate) fn question(text: &str, mode: RelayMode) -> Question {
    Question {
        segments: vec![Segment::fixed(Role::User, text)],
        scene: crate::scene::built_in("chat"),
        mode,
        pace: PaceMode::Instant,
        sampling: Sampling::default(),
        tokens_max: 12,
        refine: RefineOptions::default(),
        assist_tokens: None,
        shorten: true,
        corrector: None,
        tools: None,
        format: baton_protocol::AnswerFormat::Text,
        own: None,
        cites: false,
    }
}

/// Asks the question; returns the report, and the text as it was shown.
pub(crate) async fn ask(agent: &Agent, question: Question) -> (AnswerReport, String) {
    let (sender, mut events) = mpsc::channel(64);
    let show = async {
        let mut shown = String::new();
        while let Some(event) = events.recv().await {
            if let AnswerEvent::Text { text, .. } = event {
                shown.push_str(&text);
            }
        }
        shown
    };
    let (report, shown) = tokio::join!(agent.answer(question, sender), show);
    (report.unwrap(), shown)
}

pub(crate) fn codes(report: &AnswerReport) -> Vec<&'static str> {
    report.notes.iter().map(Note::code).collect()
}

#[tokio::test]
async fn no_private_value_leaves_and_every_one_is_restored() {
    let canaries =
        ["canary.jane@example.com", "4111 1111 1111 1111", "192.168.77.5", "sk-canary0123456789abcdef"];
    let cloud =
        FakeCloud::start(stream(&["Mail", " [EM", "AIL_1", "] or", " [CARD_1].", " [EMAIL_9]"])).await;
    let agent = agent(Some(&cloud.url));
    let text = format!("Know {}", canaries.join(" and "));
    let (report, shown) = ask(&agent, question(&text, RelayMode::CloudOnly)).await;
    assert_eq!(report.answer, "Mail canary.jane@example.com or 4111 1111 1111 1111. [EMAIL_9]");
    assert_eq!(report.answer, shown);
    assert_eq!((report.ending, codes(&report)), ("stop", vec!["redacted"]));
    let requests = cloud.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].contains("[EMAIL_1]") && requests[0].contains("[KEY_1]"), "{}", requests[0]);
    for canary in canaries {
        assert!(!requests[0].contains(canary), "{canary} left the device");
    }
}

#[tokio::test]
async fn without_a_cloud_that_answers_the_device_answers_alone() {
    let alone = agent(None);
    let (want, _) = ask(&alone, question("Say it.", RelayMode::DeviceOnly)).await;
    assert_eq!((want.tokens_from_cloud, want.error.clone()), (0, None));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let agent = agent(Some(&url));
    for mode in [RelayMode::Relay, RelayMode::CloudOnly] {
        let (report, shown) = ask(&agent, question("Say it.", mode)).await;
        assert_eq!((report.answer.as_str(), shown.as_str()), (want.answer.as_str(), want.answer.as_str()));
        assert_eq!(codes(&report), ["cloud_unreachable"]);
    }
}

#[tokio::test]
async fn an_overloaded_cloud_is_left_alone_as_long_as_it_asks() {
    let body = r#"{"error":{"code":"overloaded","message":"busy","retry_after_ms":60000}}"#;
    let response = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let cloud = FakeCloud::start(response).await;
    let agent = agent(Some(&cloud.url));
    for _ in 0..3 {
        let (report, _) = ask(&agent, question("Say it.", RelayMode::Relay)).await;
        assert_eq!((report.error.clone(), codes(&report)), (None, vec!["cloud_overloaded"]));
        let note = report.notes[0].to_string();
        assert!(note.starts_with("the cloud takes no request now: busy; try again in "), "{note}");
    }
    assert_eq!(cloud.requests().len(), 1, "asked once, then not before it may be asked again");
}

#[tokio::test]
async fn a_captive_portal_is_recognized_and_a_dead_stream_taken_over() {
    let page =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
            .to_owned();
    let cloud = FakeCloud::start(page).await;
    let (report, _) = ask(&agent(Some(&cloud.url)), question("Say it.", RelayMode::Relay)).await;
    assert_eq!((report.error.clone(), codes(&report)), (None, vec!["not_an_event_stream"]));

    let whole = stream(&["One", " two", " three", " four"]);
    let cut = whole.find("event: end").unwrap();
    let cloud = FakeCloud::start(whole[..cut].replace("\"assist_tokens\":4", "\"assist_tokens\":9")).await;
    let (report, shown) = ask(&agent(Some(&cloud.url)), question("Say it.", RelayMode::CloudOnly)).await;
    assert!(shown.starts_with("One two three four"), "{shown}");
    assert_eq!(report.tokens_from_cloud, 4);
    assert_eq!(codes(&report), ["cloud_disconnected"]);
}

#[tokio::test]
async fn a_reader_that_goes_cancels_its_answer_and_the_next_is_served() {
    let agent = agent(None);
    let (sender, events) = mpsc::channel(1);
    drop(events);
    let report = agent.answer(question("Say it.", RelayMode::DeviceOnly), sender).await.unwrap();
    assert_eq!(report.ending, "cancelled");
    let (report, _) = ask(&agent, question("Say it.", RelayMode::DeviceOnly)).await;
    assert_ne!(report.ending, "cancelled");
}

#[tokio::test]
async fn an_engine_that_is_lost_leaves_the_answers_to_the_cloud() {
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = broken.clone();
    let engine = watched(model(), move |_, _| assert!(!breaks.load(Ordering::Relaxed), "the engine breaks"));
    let worker = EngineWorker::start(engine, LocalOptions::new(1024)).unwrap();
    broken.store(true, Ordering::Relaxed);
    // More tokens are announced than come, so that the device does not go on before the end event.
    let whole = stream(&["It", " is", " so."]).replace("\"assist_tokens\":3", "\"assist_tokens\":9");
    let cloud = FakeCloud::start(whole).await;
    let client = CloudClient::new(&cloud.url, None).unwrap();
    let device = DeviceModel::new(worker, model());
    let agent = Agent::new(Some(device), model().tokenizer().clone(), Some(client), "test");
    // The first question makes the engine fail; the last one finds it gone.
    for _ in 0..2 {
        let (alone, _) = ask(&agent, question("Say it.", RelayMode::DeviceOnly)).await;
        assert_eq!((alone.ending, alone.answer.as_str()), ("error", ""), "{alone:?}");
        for _ in 0..2 {
            let (report, shown) = ask(&agent, question("Say it.", RelayMode::Relay)).await;
            assert_eq!((report.answer.as_str(), shown.as_str()), ("It is so.", "It is so."));
            assert_eq!((report.ending, report.error), ("stop", None));
        }
    }
}

#[tokio::test]
async fn a_mode_without_its_means_is_refused() {
    let (sender, _events) = mpsc::channel(1);
    let asked = agent(None).answer(question("q", RelayMode::CloudOnly), sender).await;
    assert!(matches!(asked, Err(AgentError::NoCloud)));
}

#[tokio::test]
async fn a_scene_with_an_adapter_is_answered_with_it_or_says_that_it_is_missing() {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(model(), options).unwrap();
    let id = engine.add_adapter(crate::local::tests::adapter(5)).unwrap();
    let worker = EngineWorker::start(engine, LocalOptions::new(1024)).unwrap();
    let device =
        DeviceModel { adapters: [("law".to_owned(), id)].into(), ..DeviceModel::new(worker, model()) };
    let agent = Agent::new(Some(device), model().tokenizer().clone(), None, "test");
    let asked = |adapter: Option<&str>| {
        let mut question = question("Say it.", RelayMode::DeviceOnly);
        question.scene.settings.adapter = adapter.map(str::to_owned);
        question
    };
    let (plain, _) = ask(&agent, asked(None)).await;
    let (law, _) = ask(&agent, asked(Some("law"))).await;
    let (missing, _) = ask(&agent, asked(Some("med"))).await;
    assert_ne!(law.answer, plain.answer, "the adapter changes the answer");
    assert_eq!((codes(&plain), codes(&law)), (vec![], vec![]));
    assert_eq!((missing.answer.as_str(), codes(&missing)), (plain.answer.as_str(), vec!["adapter_missing"]));
    assert!(missing.notes[0].to_string().contains("no adapter `med`"), "{:?}", missing.notes);
}

/// Returns the request number `at`, from 0, that the cloud received.
fn sent(cloud: &FakeCloud, at: usize) -> String {
    cloud.requests().into_iter().nth(at).expect("the cloud was asked that often")
}

#[tokio::test]
async fn a_restored_value_does_not_leave_with_the_next_turn() {
    let cloud = FakeCloud::start(stream(&["Your number is", " [PHONE_1]."])).await;
    let agent = agent(Some(&cloud.url));
    let (first, _) = ask(&agent, question("Phone: 5550143. What is my number?", RelayMode::CloudOnly)).await;
    assert_eq!(first.answer, "Your number is 5550143.");
    // An application may leave out the earlier turn, whose words marked the number as private.
    let mut next = question("Thanks. Is 555-0143 right?", RelayMode::CloudOnly);
    next.segments.insert(0, Segment::fixed(Role::Assistant, &*first.answer));
    let (second, _) = ask(&agent, next).await;
    let sent = sent(&cloud, 1);
    assert!(sent.contains("Your number is [PHONE_"), "{sent}");
    for value in ["5550143", "555-0143"] {
        assert!(!sent.contains(value), "{value} left the device: {sent}");
    }
    assert_eq!(codes(&second), ["redacted"]);
}

#[tokio::test]
async fn a_device_that_answers_alone_reads_the_text_as_it_was_given() {
    let text = "Dear Ms. Keller, call 5550143 or mail ann@example.com. What is the number?";
    let (want, _) = ask(&agent(None), question(text, RelayMode::DeviceOnly)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for mode in [RelayMode::Relay, RelayMode::CloudOnly] {
        let (got, shown) = ask(&agent(Some(&nobody)), question(text, mode)).await;
        assert_eq!((&got.answer, &shown), (&want.answer, &want.answer), "{mode:?}");
        assert_eq!(codes(&got), ["redacted", "cloud_unreachable"], "{mode:?}");
        assert_eq!(got.timeline.prompt_tokens, want.timeline.prompt_tokens, "{mode:?}");
    }
    let (off, _) = ask(&agent(Some(&nobody)), question(text, RelayMode::DeviceOnly)).await;
    assert_eq!((off.answer, off.notes), (want.answer, Vec::new()));
}

#[tokio::test]
async fn a_cloud_that_hides_a_placeholder_among_letters_learns_nothing() {
    let hidden = ["A[PASSWORD_1]B x[PHONE_1]y", "[USER_1]z7 [PASSWORD_1][PASSWORD_2]"];
    let cloud = FakeCloud::start(stream(&hidden)).await;
    let agent = agent(Some(&cloud.url));
    let said = r"PIN: 4821. Phone: 555 0143. /home/jdoe/x. Password: q\zo7te";
    let (first, _) = ask(&agent, question(said, RelayMode::CloudOnly)).await;
    assert!(first.answer.starts_with("A4821B x555 0143yjdoez7 4821"), "{}", first.answer);
    let mut next = question("Thanks.", RelayMode::CloudOnly);
    next.segments.insert(0, Segment::fixed(Role::Assistant, &*first.answer));
    ask(&agent, next).await;
    let sent = sent(&cloud, 1);
    for value in ["4821", "0143", "jdoe", "zo7te"] {
        assert!(!sent.contains(value), "{value} left the device: {sent}");
    }
}

#[tokio::test]
async fn a_value_is_replaced_wherever_it_stands_in_the_request() {
    let cloud = FakeCloud::start(stream(&["Yes."])).await;
    let mut agent = agent(Some(&cloud.url));
    agent.device_class = "laptop of jane@example.com".into();
    let agent = agent.with_network(Some("wifi of 5550143".into()));
    let mut asked = question("So 5550143 rang?", RelayMode::Relay);
    asked.segments.insert(0, Segment::fixed(Role::Tool, "{\"caller\": \"5550143\"}"));
    asked.segments.insert(0, Segment::fixed(Role::System, "Phone: 5550143"));
    asked.sampling.stop = vec!["5550143".into(), "0143".into(), "dial 5550143!".into(), "END".into()];
    ask(&agent, asked).await;
    let sent = sent(&cloud, 0);
    assert!(sent.contains("\"dial [PHONE_1]!\",\"END\"]"), "stop strings are sent redacted: {sent}");
    for value in ["0143", "jane@example.com"] {
        assert!(!sent.contains(value), "{value} left the device: {sent}");
    }
}

#[tokio::test]
async fn a_scene_whose_name_is_private_is_not_asked_for() {
    let cloud = FakeCloud::start(stream(&["Yes."])).await;
    let agent = agent(Some(&cloud.url));
    let found = crate::scene::find(agent.cloud(), &cloud.url, None, "jane@example.com").await;
    assert!(matches!(found, Err(CloudFault::Privacy { .. })), "{found:?}");
    let mut asked = question("Hello?", RelayMode::Relay);
    asked.scene.id = "jane@example.com".into();
    let (report, _) = ask(&agent, asked).await;
    assert!(codes(&report).contains(&"privacy_check_failed"), "{:?}", report.notes);
    assert!(cloud.requests().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn a_prompt_over_the_clouds_limit_is_shortened_before_it_is_asked() {
    let text: String = (0..40).map(|i| format!("The thing number {i} is in room {}. ", i * 7)).collect();
    let document = format!("{text}The needle lies in the harbour. {text}");
    let told = async |shorten: bool, tokenizer: bool| {
        let cloud = FakeCloud::start(stream(&["It", " is"])).await;
        let mut question = question("", RelayMode::Relay);
        question.segments = vec![
            Segment::refinable(Role::User, &*document),
            Segment::fixed(Role::User, "Where does the needle lie?"),
        ];
        question.shorten = shorten;
        question.scene.prompt_tokens_max = Some(400);
        question.scene.tokenizer_sha256 = tokenizer.then(|| model().tokenizer().digest_hex().to_owned());
        let (report, _) = ask(&agent(Some(&cloud.url)), question).await;
        let request = cloud.requests().remove(0);
        (report.notes, request)
    };
    let (notes, request) = told(true, true).await;
    let Some(Note::PromptShortened { taker, tokens, limit, kept }) = notes.first() else {
        panic!("{notes:?}")
    };
    assert_eq!((*taker, *limit), (Source::Cloud, 400));
    assert!(*tokens > 400 && *kept <= 400 - 12, "{tokens} to {kept}");
    assert!(notes[0].to_string().contains("the cloud takes 400"), "{}", notes[0]);
    assert!(request.contains("The needle lies in the harbour."), "what matters is kept: {request}");
    assert!(request.len() < document.len(), "{request}");
    // With another tokenizer the device keeps fewer tokens, by its own count.
    let (notes, _) = told(true, false).await;
    assert!(matches!(notes[0], Note::PromptShortened { kept, .. } if kept < 320), "{notes:?}");
    // Without permission the prompt is not shortened.
    let (notes, _) = told(false, true).await;
    assert!(notes.iter().all(|note| note.code() != "prompt_shortened"), "{notes:?}");
}

#[tokio::test]
async fn what_a_sentence_that_is_left_out_gives_away_is_replaced_in_all_others() {
    let text: String = (0..60).map(|i| format!("The thing number {i} is in room {}. ", i * 7)).collect();
    let document = format!(
        "{text}The needle lies in the harbour. {text}Somebody wrote with blue ink on paper: my PIN is 483192. "
    );
    let cloud = FakeCloud::start(stream(&["It", " is"])).await;
    let mut asked = question("", RelayMode::Relay);
    asked.segments = vec![
        Segment::fixed(Role::User, "I typed 483192 at the keypad.\n\n"),
        Segment::refinable(Role::User, &*document),
        Segment::fixed(Role::User, "Where does the needle lie?"),
    ];
    asked.scene.prompt_tokens_max = Some(300);
    let (report, _) = ask(&agent(Some(&cloud.url)), asked).await;
    assert!(codes(&report).contains(&"prompt_shortened"), "{:?}", report.notes);
    let request = cloud.requests().remove(0);
    assert!(!request.contains("blue ink"), "the sentence is left out: {request}");
    assert!(request.contains("at the keypad") && !request.contains("483192"), "{request}");
}

/// Asks; returns the report, the text, and the stages of the progress that was told.
async fn ask_and_watch(agent: &Agent, question: Question) -> (AnswerReport, Vec<ProgressStage>) {
    let (sender, mut events) = mpsc::channel(256);
    let watch = async {
        let mut stages = Vec::new();
        while let Some(event) = events.recv().await {
            if let AnswerEvent::Progress(progress) = event {
                stages.push(progress.stage);
            }
        }
        stages
    };
    let (report, stages) = tokio::join!(agent.answer(question, sender), watch);
    (report.unwrap(), stages)
}

#[tokio::test]
async fn answers_at_once_are_those_of_a_device_that_gives_one_after_another() {
    let texts = ["Say it.", "Say it once more, please.", "What is red?", "Count to four."];
    let mut want = Vec::new();
    let alone = agent(None);
    for text in texts {
        want.push(ask(&alone, question(text, RelayMode::DeviceOnly)).await.0.answer);
    }
    let together = agent_of(None, texts.len());
    let asked = texts.map(|text| ask_and_watch(&together, question(text, RelayMode::DeviceOnly)));
    // A slow machine may tell of a prompt that it waits for the pass under way, so the stages are not
    // looked at.
    for ((report, _), want) in futures_util::future::join_all(asked).await.into_iter().zip(want) {
        assert_eq!((report.answer, report.error), (want, None));
    }
}

#[tokio::test]
async fn who_waits_for_a_place_is_told() {
    let agent = agent_of(None, 1);
    let asked = [1, 2].map(|_| ask_and_watch(&agent, question("Say it.", RelayMode::DeviceOnly)));
    let [(first, first_told), (second, second_told)] =
        futures_util::future::join_all(asked).await.try_into().unwrap();
    assert_eq!(first.answer, second.answer);
    // Each prompt takes 400 ms, so that one of them waits longer than the 200 ms before it is told.
    let told = [first_told, second_told].map(|stages| stages.contains(&ProgressStage::Queue));
    assert_eq!(told, [false, true], "first come, first served");
}

#[tokio::test]
async fn a_value_shown_by_an_answer_under_way_does_not_leave_with_another_question() {
    // The first answer restores the number and does not end.
    let whole = stream(&["Your number is", " [PHONE_1]."]);
    let cut = whole.find("event: end").unwrap();
    let first_part = whole[..cut].replace("\"assist_tokens\":2", "\"assist_tokens\":9");
    let cloud = FakeCloud::answering_and_holding(first_part, stream(&["Yes."])).await;
    let agent = Arc::new(agent(Some(&cloud.url)));
    let (sender, mut events) = mpsc::channel(64);
    let asked = question("Phone: 5550143. What is my number?", RelayMode::CloudOnly);
    let first = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.answer(asked, sender).await })
    };
    let mut shown = String::new();
    while !shown.contains("5550143.") {
        match events.recv().await.expect("the answer goes on") {
            AnswerEvent::Text { text, .. } => shown.push_str(&text),
            AnswerEvent::Note(_) | AnswerEvent::Progress(_) => {}
        }
    }
    assert!(!first.is_finished());
    let mut next = question("Is 555-0143 right?", RelayMode::CloudOnly);
    next.segments.insert(0, Segment::fixed(Role::Assistant, &*shown));
    ask(&agent, next).await;
    let sent = sent(&cloud, 1);
    for value in ["5550143", "555-0143"] {
        assert!(!sent.contains(value), "{value} left the device: {sent}");
    }
    drop(events);
    assert_eq!(first.await.unwrap().unwrap().ending, "cancelled");
    assert!(agent.running.shown().is_empty());
}

/// Makes a question of a turn with a tool, for a cloud that knows tools if `known`.
fn tool_question(texts: [&str; 2], mode: RelayMode, known: bool) -> Question {
    let mut asked = question(texts[0], mode);
    asked.scene.call_markup = known.then_some(Markup::Tagged);
    let schema = serde_json::json!({ "type": "object", "properties": { "to": { "type": "string" } } });
    let tool =
        Tool { name: "mail".into(), description: Some(texts[1].into()), parameters: schema, strict: false };
    asked.tools = Some(ToolUse { tools: vec![tool], choice: ToolChoice::Auto, parallel: false });
    asked
}

fn tool_of(asked: &mut Question) -> &mut Tool {
    &mut asked.tools.as_mut().unwrap().tools[0]
}

#[tokio::test]
async fn tools_and_calls_are_redacted_and_arguments_restored_as_json() {
    let call =
        ["<tool_call>\n{\"name\": \"mail\", \"arguments\": {\"to\": \"[EMA", "IL_1]\"}}\n</tool_call>"];
    let cloud = FakeCloud::start(stream(&call)).await;
    let agent = agent(Some(&cloud.url));
    let texts = ["Mail canary.jane@example.com.", "Mails canary.bob@example.com by default."];
    let mut asked = tool_question(texts, RelayMode::CloudOnly, true);
    let arguments = "{\"to\":\"canary.jane\\u0040example.com\",\"card\":4111111111111111}".to_owned();
    let past = PastCall { id: "c1".into(), name: "mail".into(), arguments };
    asked.segments.extend([
        Segment { calls: vec![past], ..Segment::fixed(Role::Assistant, "") },
        Segment {
            call_id: Some("c1".into()),
            ..Segment::fixed(Role::Tool, "sent to canary.eve@example.com")
        },
    ]);
    tool_of(&mut asked).parameters["default"] = "canary.zoe@example.com".into();
    let (report, shown) = ask(&agent, asked).await;
    assert!(shown.contains("\"to\": \"canary.jane@example.com\""), "{shown}");
    assert_eq!((report.answer, report.ending), (shown, "stop"));
    let sent = cloud.requests().concat();
    assert!(sent.contains("\"call_id\":\"c1\"") && sent.contains("[EMAIL_1]"), "{sent}");
    for canary in ["canary", "4111111111111111"] {
        assert!(!sent.contains(canary), "{canary} left the device: {sent}");
    }
}

#[tokio::test]
async fn a_private_name_of_a_tools_field_keeps_the_turn_on_the_device() {
    let cloud = FakeCloud::start(stream(&["never"])).await;
    let agent = agent(Some(&cloud.url));
    let mut asked = tool_question(["Mail.", "Mails."], RelayMode::Relay, true);
    tool_of(&mut asked).parameters["properties"]["canary.jane@example.com"] = serde_json::json!({});
    let (report, _) = ask(&agent, asked).await;
    assert_eq!((codes(&report), report.tokens_from_cloud), (vec!["privacy_check_failed"], 0));
    assert!(cloud.requests().is_empty() && report.error.is_none(), "{:?}", report.error);
}

#[tokio::test]
async fn a_cloud_that_knows_no_tools_is_not_asked() {
    let cloud = FakeCloud::start(stream(&["never"])).await;
    let agent = agent(Some(&cloud.url));
    let (report, _) = ask(&agent, tool_question(["Mail.", "Mails."], RelayMode::Relay, false)).await;
    assert_eq!((report.tokens_from_cloud, report.error), (0, None));
    assert!(cloud.requests().is_empty());
    let (sender, _events) = mpsc::channel(1);
    let refused = agent.answer(tool_question(["Mail.", "Mails."], RelayMode::CloudOnly, false), sender).await;
    assert!(matches!(refused, Err(AgentError::NoDeviceForTools)));
}

#[tokio::test]
async fn a_cloud_that_refuses_tools_leaves_the_answer_to_the_device() {
    let body = r#"{"error":{"code":"invalid_request","message":"unknown field `tools`"}}"#;
    let refusal = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let cloud = FakeCloud::start(refusal).await;
    let agent = agent(Some(&cloud.url));
    let (report, _) = ask(&agent, tool_question(["Mail.", "Mails."], RelayMode::Relay, true)).await;
    assert_eq!((codes(&report), report.error), (vec!["cloud_refused"], None));
}
