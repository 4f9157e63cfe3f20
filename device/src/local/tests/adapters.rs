//! Tests answers with an adapter: each is what the device alone would write with it, also beside answers
//! without one.

use super::*;

/// Takes over the answer after `accepted`; returns the device's own tokens.
fn own_tokens(engine: &mut Driven<Engine>, spec: &AnswerSpec, accepted: &[TokenId]) -> Vec<TokenId> {
    engine.command(EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole });
    engine.command(EngineCommand::Verify { prompt: P, accepted: Accepted::Ids(accepted.to_vec()) });
    run(engine);
    let decode = EngineCommand::Decode { prompt: P, keep: Keep::All, index: accepted.len() };
    let mut reports = engine.command(decode);
    reports.extend(run(engine));
    reports
        .iter()
        .filter_map(|r| if let EngineReport::Token { id, .. } = r { Some(*id) } else { None })
        .collect()
}

#[test]
fn a_takeover_goes_on_as_the_device_alone_would_with_that_adapter() {
    let mut engine = device(2048);
    let adapters = [1, 2].map(adapter);
    let ids = adapters.clone().map(|adapter| engine.host().engine_mut().add_adapter(adapter).unwrap());
    let plain = spec(&document(10), 20, false);
    // No adapter would have written these tokens, so that a wrong adapter shows.
    let accepted: Vec<TokenId> = "qzxjkvwpym".bytes().map(TokenId::from).collect();
    let mut answers = Vec::new();
    for at in [None, Some(0), Some(1), None, Some(0)] {
        let spec = AnswerSpec { adapter: at.map(|at: usize| ids[at]), ..plain.clone() };
        let adapter = at.map(|at| &adapters[at]);
        for n in [0, 4, accepted.len()] {
            let want = adapted_continuation(&spec, adapter, &accepted[..n]);
            let own = own_tokens(&mut engine, &spec, &accepted[..n]);
            assert_eq!(own, want[n..], "adapter {at:?} after {n} tokens");
            answers.push(own);
        }
    }
    assert!(answers[0] != answers[3] && answers[3] != answers[6], "adapters change what is written");
    assert_eq!(answers[0], answers[9], "and leave nothing behind");
}

#[test]
fn each_adapter_finds_its_own_prefix_again() {
    let mut engine = device(2048);
    let id = engine.host().engine_mut().add_adapter(adapter(1)).unwrap();
    let plain = spec(&document(20), 8, false);
    let adapted = AnswerSpec { adapter: Some(id), ..plain.clone() };
    let mut cached = |spec: &AnswerSpec| {
        let open = EngineCommand::Open { prompt: P, spec: spec.clone(), scope: Scope::Whole };
        engine.command(open);
        run(&mut engine)
            .iter()
            .find_map(|r| {
                if let EngineReport::Prompt { cached, tokens, .. } = r {
                    Some((*cached, *tokens))
                } else {
                    None
                }
            })
            .unwrap()
    };
    let (none, tokens) = cached(&plain);
    assert_eq!(none, 0);
    assert_eq!(cached(&adapted).0, 0, "not what the model alone has computed");
    // The last token is computed again, and possibly the block that holds it.
    assert!(cached(&plain).0 + 32 >= tokens - 1 && cached(&adapted).0 + 32 >= tokens - 1);
}
