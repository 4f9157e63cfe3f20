//! Requests that are not wanted any more: the cloud is told, once, before the program ends.

use super::*;

#[tokio::test]
async fn the_cloud_is_told_what_is_not_wanted_any_more_and_nothing_else() {
    let check = async |whole: String, holds: bool, mode: RelayMode, want: usize| {
        let cloud = FakeCloud::serving(vec![whole.clone()], holds).await;
        let agent = agent(Some(&cloud.url));
        ask(&agent, question("Say it.", mode)).await;
        agent.flush().await;
        assert_eq!((cloud.requests().len(), cloud.ended()), (1, want), "{mode:?} {whole}");
    };
    let whole = stream(&["One", " two"]);
    let offers = |field: &str| whole.replacen("\"tau_ms\":100", &format!("\"tau_ms\":100,{field}"), 1);
    let refused = "HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n\r\n".to_owned();
    let cut = whole[..whole.find("event: end").unwrap()].to_owned();
    // It said that it is over, or that it does not begin.
    check(whole.clone(), false, RelayMode::CloudOnly, 0).await;
    check(refused, false, RelayMode::Relay, 0).await;
    // It was cut, was slower than this device, or keeps something.
    check(cut.replace("\"assist_tokens\":2", "\"assist_tokens\":9"), false, RelayMode::CloudOnly, 1).await;
    let silent = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned();
    check(silent, true, RelayMode::Relay, 1).await;
    let verify = r#""verify":{"draft_max":8,"kept_ms":30000,"pass_ms":1,"row_ms":1}"#;
    check(offers(verify), false, RelayMode::CloudOnly, 1).await;
}

#[tokio::test]
async fn an_answer_that_is_stopped_or_dropped_ends_in_the_cloud_before_the_program_does() {
    let whole = stream(&["One", " two"]);
    let begun = whole[..whole.find("event: token").unwrap()].to_owned();
    let silent = begun[..begun.find("event: first").unwrap()].to_owned();
    for (begun, is_dropped) in
        [(begun.clone(), false), (begun, true), (silent.clone(), false), (silent, true)]
    {
        let cloud = FakeCloud::answering_and_holding(begun, String::new()).await;
        let agent = agent(Some(&cloud.url));
        let (sender, mut events) = mpsc::channel(64);
        {
            let mut answer = std::pin::pin!(agent.answer(question("Say it.", RelayMode::CloudOnly), sender));
            let asked = async {
                while cloud.requests().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! { _ = &mut answer => panic!("it does not end"), () = asked => {} }
            if !is_dropped {
                events.close();
                assert_eq!(answer.await.unwrap().ending, "cancelled");
            }
        }
        agent.flush().await;
        assert_eq!((cloud.requests().len(), cloud.ended()), (1, 1), "dropped: {is_dropped}");
    }
}
