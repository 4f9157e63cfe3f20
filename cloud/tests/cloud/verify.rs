//! Drafts of devices: what is accepted and written is what the cloud alone would have written.

use std::num::NonZeroUsize;
use std::time::Duration;

use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::{CloudService, ServiceError, ServiceOptions, Terms};
use baton_engine::Engine;
use baton_generate::host::Host;
use baton_protocol::{
    AssistEvent, AssistRequest, ErrorCode, Role, Sampling, Segment, VerifyPolicy, VerifyReply, VerifyRequest,
    answer_digest,
};
use baton_random::SplitMix64;

use super::world::{HandClock, document, drain, model, options, request, run_all, setup, tokens};

/// L of the answers that are verified.
const ASSIST: u32 = 6;
/// Tokens of a whole answer.
const WHOLE: u32 = 60;

struct Verified {
    service: CloudService,
    host: Host<Engine>,
    clock: HandClock,
}

impl Verified {
    fn new(policy: VerifyPolicy) -> Verified {
        Verified::with(policy, options())
    }

    fn with(policy: VerifyPolicy, options: ServiceOptions) -> Verified {
        let settings = SceneSettings {
            ratio: Some(0.25),
            verify: policy,
            ..SceneSettings::with_system("You answer from the document.")
        };
        let scenes = SceneBook::new([Scene { id: "doc-qa".into(), version: 1, settings }]);
        let clock = HandClock::default();
        let options = ServiceOptions { clock: clock.clock(), ..options };
        let (service, host) = CloudService::new(setup(), scenes, options).unwrap();
        Verified { service, host, clock }
    }

    /// Returns the ids of the answer, and whether the device may have drafts checked.
    fn ask(&mut self, request: &AssistRequest) -> (Vec<u32>, bool) {
        let events = self.ask_as(0, request);
        (tokens(&events).into_iter().map(|(id, _)| id).collect(), is_offered(&events))
    }

    /// Returns the events of an answer for this owner.
    fn ask_as(&mut self, owner: u128, request: &AssistRequest) -> Vec<AssistEvent> {
        let terms = Terms { owner, ..Terms::default() };
        let mut stream = self.service.assist_for(request, terms, None).unwrap();
        run_all(&mut self.host);
        self.clock.advance(Duration::from_millis(1));
        drain(&mut stream)
    }

    /// Returns the value of a metric without labels but the model's.
    fn metric(&self, name: &str) -> f64 {
        let metrics = self.service.render_metrics();
        let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let line = metrics.lines().find(of).unwrap_or_else(|| panic!("no {name}: {metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn check(
        &mut self,
        request: &AssistRequest,
        answer: &[u32],
        (draft, at_least): (&[u32], u32),
    ) -> Result<VerifyReply, ServiceError> {
        let asked = VerifyRequest {
            from: answer.len() as u32,
            digest: answer_digest(answer.iter().copied()),
            draft: draft.to_vec(),
            at_least,
        };
        let mut check = self.service.verify(request.request_id, asked, Terms::default(), None)?;
        run_all(&mut self.host);
        check.try_reply().expect("nothing is left to compute")
    }
}

fn is_offered(events: &[AssistEvent]) -> bool {
    events.iter().any(|event| matches!(event, AssistEvent::First(first) if first.verify.is_some()))
}

/// Returns the tokens of the prompt, and how many of them were in the cache.
fn prompt_tokens(events: &[AssistEvent]) -> (usize, usize) {
    let end = events.iter().find_map(|event| match event {
        AssistEvent::End(end) => Some(end),
        _ => None,
    });
    let usage = &end.expect("the answer ends").usage;
    (usage.prompt_tokens as usize, usage.cached_prefix_tokens as usize)
}

fn asked(seed: u64, assist_tokens: u32) -> AssistRequest {
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.8 };
    AssistRequest {
        request_id: uuid::Uuid::from_u128(u128::from(seed) + 1),
        tokenizer_sha256: Some(model().tokenizer().digest_hex().to_owned()),
        sampling: Sampling { temperature, seed, ..Sampling::default() },
        verify: assist_tokens == ASSIST,
        ..request("doc-qa", &document(20 + seed as usize), assist_tokens)
    }
}

#[test]
fn what_is_accepted_and_written_is_the_clouds_own_answer() {
    let mut random = SplitMix64::new(5);
    for seed in 0..12 {
        let mut cloud = Verified::new(VerifyPolicy::On);
        let (whole, _) = cloud.ask(&asked(seed, WHOLE));
        let request = asked(seed, ASSIST);
        let (mut answer, is_offered) = cloud.ask(&request);
        assert!(is_offered);
        assert_eq!(answer, whole[..ASSIST as usize]);
        let (mut passes, mut requests) = (0, 0);
        while answer.len() < whole.len() {
            // A draft is right for some tokens, then it is not, or it is right up to its end.
            let rest = &whole[answer.len()..];
            let right = random.below(10).min(rest.len()).min(8);
            let mut draft = rest[..right].to_vec();
            let is_wrong = right < 8 && random.below(2) == 0;
            if is_wrong {
                let next = rest.get(right).copied().unwrap_or(0);
                draft.push((next + 1) % 256);
            }
            let at_least = (1 + random.below(12)) as u32;
            let reply = cloud.check(&request, &answer, (&draft, at_least)).unwrap();
            reply.check(&answer, &draft).unwrap();
            assert_eq!(reply.accepted as usize, right, "seed {seed} at {}", answer.len());
            let again = cloud.check(&request, &answer, (&draft, at_least)).unwrap();
            assert_eq!((again.accepted, &again.next), (reply.accepted, &reply.next), "sent again");
            let brought = reply.accepted as usize + reply.next.len();
            assert!(reply.ended || brought >= (at_least as usize).max(right + 1), "{brought} of {at_least}");
            answer.extend(&draft[..right]);
            answer.extend(&reply.next);
            passes += reply.timing.passes as usize;
            requests += reply.next.len();
        }
        assert_eq!(answer[..whole.len()], whole, "seed {seed}");
        assert_eq!(passes, requests, "one pass for a draft, and one for each further token");
    }
}

#[test]
fn an_end_is_known() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let request = asked(0, ASSIST);
    let (mut answer, _) = cloud.ask(&request);
    let room = 2048;
    loop {
        match cloud.check(&request, &answer, (&[], 64)) {
            Ok(reply) => answer.extend(&reply.next),
            Err(ServiceError::PromptTooLong { limit, .. }) => break assert_eq!(limit, room - 1),
            Err(err) => panic!("{err}"),
        }
        assert!(answer.len() <= room);
    }
}

#[test]
fn drafts_of_other_answers_are_refused() {
    let mut cloud = Verified::new(VerifyPolicy::Strict);
    let request = asked(2, ASSIST);
    let (answer, _) = cloud.ask(&request);
    let wrong = cloud.check(&request, &[1; ASSIST as usize], (&[], 1));
    assert!(matches!(wrong, Err(ServiceError::OtherAnswer { field: "digest" })), "{wrong:?}");
    let late = cloud.check(&request, &[&answer[..], &[1, 2, 3]].concat(), (&[], 1));
    assert!(matches!(late, Err(ServiceError::OtherAnswer { field: "from" })), "{late:?}");
    let unknown = cloud.check(&asked(4, ASSIST), &answer, (&[], 1));
    assert!(matches!(unknown, Err(ServiceError::NotOpen)), "{unknown:?}");
    let asked_for = VerifyRequest {
        from: ASSIST,
        digest: answer_digest(answer.iter().copied()),
        draft: Vec::new(),
        at_least: 1,
    };
    let terms = Terms { owner: 9, ..Terms::default() };
    let stranger = cloud.service.verify(request.request_id, asked_for, terms, None);
    assert!(matches!(stranger, Err(ServiceError::NotOpen)), "{stranger:?}");
    assert!(cloud.check(&request, &answer, (&[], 1)).is_ok(), "its own tenant");
}

#[test]
fn an_answer_is_forgotten_in_time() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let request = asked(2, ASSIST);
    let (mut answer, _) = cloud.ask(&request);
    for _ in 0..4 {
        cloud.clock.advance(Duration::from_secs(20));
        let reply = cloud.check(&request, &answer, (&[], 1)).unwrap();
        answer.extend(&reply.next);
    }
    cloud.clock.advance(Duration::from_secs(31));
    let late = cloud.check(&request, &answer, (&[], 1));
    assert!(matches!(late, Err(ServiceError::NotOpen)), "{late:?}");
    let metrics = cloud.service.render_metrics();
    assert!(metrics.contains("baton_open_kv_byte_seconds_total"), "{metrics}");
}

#[test]
fn a_draft_of_unknown_tokens_is_refused_with_its_place() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let request = asked(2, ASSIST);
    let (answer, _) = cloud.ask(&request);
    let vocab = model().config().vocab_len as u32;
    for (draft, at) in [(vec![vocab], 0), (vec![0, u32::MAX], 1), (vec![vocab - 1, 1 << 31], 1)] {
        let refused = cloud.check(&request, &answer, (&draft, 1)).unwrap_err();
        let body = refused.to_body().error;
        assert_eq!((body.code, body.param), (ErrorCode::InvalidRequest, Some(format!("draft[{at}]"))));
        assert!(body.message.contains(&format!("0 to {}", vocab - 1)), "{}", body.message);
    }
    assert!(cloud.check(&request, &answer, (&[vocab - 1], 1)).is_ok(), "the last token there is");
}

#[test]
fn a_fifth_tenant_is_served_beside_four_greedy_ones() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let name = |owner: u128, at: u128| uuid::Uuid::from_u128(owner << 32 | at);
    let mut ask = |owner: u128, at: u128| {
        let segments = vec![Segment::fixed(Role::User, "Hi")];
        let request = AssistRequest { request_id: name(owner, at), segments, verify: true, ..asked(2, 1) };
        is_offered(&cloud.ask_as(owner, &request))
    };
    for at in 0..260 {
        for owner in 1..=4 {
            assert!(ask(owner, at), "tenant {owner}, answer {at}");
        }
    }
    for at in 0..3 {
        assert!(ask(5, at), "the fifth tenant, answer {at}");
    }
    let is_kept = |owner: u128, at: u128| cloud.service.verified_by(owner, name(owner, at)).is_ok();
    assert!((0..3).all(|at| is_kept(5, at)), "the greedy ones lost theirs");
    let kept: Vec<usize> = (1..=4).map(|owner| (0..260).filter(|at| is_kept(owner, *at)).count()).collect();
    assert!(kept.iter().all(|kept| (255..=256).contains(kept)), "{kept:?}");
    assert!((1..=4).all(|owner| is_kept(owner, 259) && !is_kept(owner, 0)), "the oldest gave way");
}

#[test]
fn keys_and_values_are_kept_apart_and_released_in_time_without_another_request() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let request = asked(2, ASSIST);
    let (prompt, _) = prompt_tokens(&cloud.ask_as(0, &request));
    let kv_bytes = model().config().kv_token_bytes(options().kv) as f64;
    let kept = (prompt + ASSIST as usize - 1) as f64 * kv_bytes;
    assert_eq!((cloud.metric("baton_open_answers"), cloud.metric("baton_open_kv_bytes")), (1.0, kept));
    let used = cloud.metric("baton_kv_cache_usage_ratio") * cloud.service.stats().kv_tokens as f64;
    assert!(used <= 32.0, "{used} tokens are held: the last block alone");
    cloud.clock.advance(Duration::from_secs(31));
    assert!(cloud.host.turn().is_none(), "nobody asks");
    assert_eq!((cloud.metric("baton_open_answers"), cloud.metric("baton_open_kv_bytes")), (0.0, 0.0));
    assert_eq!(cloud.host.free_kv_tokens(), cloud.service.stats().kv_tokens);
}

#[test]
fn what_is_kept_evicts_no_prefix_that_was_used_later() {
    let named = |name: &str, verify: bool| AssistRequest {
        request_id: uuid::Uuid::new_v4(),
        verify,
        ..request("doc-qa", &format!("{name}. {}", document(20)), ASSIST)
    };
    let mut measured = Verified::new(VerifyPolicy::On);
    let (prompt, _) = prompt_tokens(&measured.ask_as(1, &named("Measured", false)));
    // Room for four such prompts and a half.
    let kv_tokens = NonZeroUsize::new(prompt * 9 / 2);
    let mut cloud = Verified::with(VerifyPolicy::On, ServiceOptions { kv_tokens, ..options() });
    for name in ["First", "Second", "Third"] {
        let tokenizer = Some(model().tokenizer().digest_hex().to_owned());
        let kept = AssistRequest { tokenizer_sha256: tokenizer, ..named(name, true) };
        assert!(is_offered(&cloud.ask_as(1, &kept)));
    }
    let plain = named("Neighbour", false);
    assert!(!is_offered(&cloud.ask_as(2, &plain)));
    cloud.ask_as(3, &named("Another", false));
    let (_, cached) =
        prompt_tokens(&cloud.ask_as(2, &AssistRequest { request_id: uuid::Uuid::new_v4(), ..plain }));
    assert!(cached + 64 > prompt, "{cached} of {prompt} tokens are still there");
}

#[test]
fn only_who_may_is_offered_it() {
    for (policy, change, want) in [
        (VerifyPolicy::On, None, true),
        (VerifyPolicy::Off, None, false),
        (VerifyPolicy::On, Some("not asked for"), false),
        (VerifyPolicy::On, Some("other tokens"), false),
    ] {
        let mut cloud = Verified::new(policy);
        let mut request = asked(2, ASSIST);
        match change {
            Some("not asked for") => request.verify = false,
            Some(_) => request.tokenizer_sha256 = Some("0".repeat(64)),
            None => {}
        }
        let (answer, is_offered) = cloud.ask(&request);
        assert_eq!(is_offered, want, "{policy:?} {change:?}");
        assert_eq!(cloud.check(&request, &answer, (&[], 1)).is_ok(), want, "{policy:?} {change:?}");
    }
}

#[test]
fn a_cancelled_check_costs_no_slot() {
    let mut cloud = Verified::new(VerifyPolicy::On);
    let request = asked(2, ASSIST);
    let (answer, _) = cloud.ask(&request);
    let asked_for = VerifyRequest {
        from: ASSIST,
        digest: answer_digest(answer.iter().copied()),
        draft: Vec::new(),
        at_least: 60,
    };
    let check = cloud.service.verify(request.request_id, asked_for, Terms::default(), None).unwrap();
    let pass = cloud.host.turn().expect("the check begins");
    cloud.host.commit(pass);
    drop(check);
    assert!(run_all(&mut cloud.host) <= 1, "nobody waits for the tokens");
    assert_eq!(cloud.service.stats().running, 0);
    let reply = cloud.check(&request, &answer, (&[], 2)).unwrap();
    assert_eq!(reply.next.len(), 2);
}
